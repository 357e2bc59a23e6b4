// A device whose batches run when the test says so, and everything else that scheduler tests share.
#ifndef ATTEND_TESTS_SERVER_RUNTIME_FAKE_DEVICE_H_
#define ATTEND_TESTS_SERVER_RUNTIME_FAKE_DEVICE_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/device/device.h"
#include "server/runtime/scheduler.h"

namespace attend::server {

// What a call costs on a FakeDevice, coded into its shape: q_len tokens, and q_heads predicted
// milliseconds; kv_len device bytes.
inline Call FakeCall(int64_t tokens = 1, int32_t milliseconds = 1, int64_t device_bytes = 0) {
  Call call;
  call.batch = 1;
  call.q_heads = milliseconds;
  call.kv_heads = 1;
  call.head_dim = call.v_head_dim = 64;
  call.q_len = tokens;
  call.kv_len = device_bytes;
  return call;
}

// Thread-safe. Shared by the test and the device that the scheduler owns.
class FakeDeviceControl {
 public:
  struct Running {
    std::vector<const Call*> calls;
    int64_t staged = 0;  // of them
    DeviceSlot::Done done;
  };

  // Batches handed over and not completed, oldest first.
  int64_t running() {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(running_.size());
  }
  void AwaitRunning(int64_t count) {
    absl::MutexLock lock(&mutex_);
    while (static_cast<int64_t>(running_.size()) < count) changed_.Wait(&mutex_);
  }
  // The calls of a batch that runs.
  std::vector<const Call*> calls(size_t batch = 0) {
    absl::MutexLock lock(&mutex_);
    return running_[batch].calls;
  }
  // Of the calls of a batch, how many came with tensors that were copied ahead.
  int64_t staged(size_t batch = 0) {
    absl::MutexLock lock(&mutex_);
    return running_[batch].staged;
  }
  // Requests that hold memory for such tensors.
  int64_t stagings() {
    absl::MutexLock lock(&mutex_);
    return stagings_;
  }
  // Completes the oldest batch (or another), on this thread; item_status may set one per item.
  void Complete(size_t batch = 0, std::vector<absl::Status> item_status = {}) {
    Running r;
    {
      absl::MutexLock lock(&mutex_);
      r = std::move(running_[batch]);
      running_.erase(running_.begin() + batch);
    }
    BatchResult result;
    result.items.resize(r.calls.size());
    result.kernel_ns = 1;
    for (size_t i = 0; i < item_status.size(); ++i) result.items[i].status = item_status[i];
    r.done(std::move(result));
  }
  void set_health(absl::Status health) {
    absl::MutexLock lock(&mutex_);
    health_ = std::move(health);
  }
  // Sizes of all batches so far.
  std::vector<int64_t> batch_sizes() {
    absl::MutexLock lock(&mutex_);
    return batch_sizes_;
  }
  int64_t peak_device_bytes() {
    absl::MutexLock lock(&mutex_);
    return peak_device_bytes_;
  }

 private:
  friend class FakeSlot;
  friend class FakeStaging;
  friend class FakeDevice;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<Running> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> batch_sizes_ ABSL_GUARDED_BY(mutex_);
  int64_t device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stagings_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

class FakeStaging : public Staging {
 public:
  explicit FakeStaging(FakeDeviceControl* control) : control_(control) { Count(1); }
  ~FakeStaging() override { Count(-1); }
  void CopyIn(std::span<const std::byte>) override {}

 private:
  void Count(int64_t change) {
    absl::MutexLock lock(&control_->mutex_);
    control_->stagings_ += change;
  }

  FakeDeviceControl* const control_;
};

class FakeSlot : public DeviceSlot {
 public:
  // at_once: batches complete inside Run.
  FakeSlot(FakeDeviceControl* control, bool at_once) : control_(control), at_once_(at_once) {}

  void Run(std::span<const BatchItem> batch, Done done) override {
    FakeDeviceControl::Running r;
    int64_t bytes = 0;
    for (const BatchItem& item : batch) {
      r.calls.push_back(item.call);
      bytes += item.call->kv_len;
      r.staged += item.staging != nullptr ? 1 : 0;
    }
    r.done = [control = control_, bytes, done = std::move(done)](BatchResult result) {
      {
        absl::MutexLock lock(&control->mutex_);
        control->device_bytes_ -= bytes;
      }
      done(std::move(result));
    };
    const size_t size = r.calls.size();
    {
      absl::MutexLock lock(&control_->mutex_);
      control_->batch_sizes_.push_back(static_cast<int64_t>(size));
      control_->device_bytes_ += bytes;
      control_->peak_device_bytes_ = std::max(control_->peak_device_bytes_, control_->device_bytes_);
      if (!at_once_) {
        control_->running_.push_back(std::move(r));
        control_->changed_.SignalAll();
        return;
      }
    }
    BatchResult result;
    result.items.resize(size);
    r.done(std::move(result));
  }

 private:
  FakeDeviceControl* const control_;
  const bool at_once_;
};

struct FakeDeviceOptions {
  std::string name = "fake:0";
  int slots = 1;
  int short_slots = 0;
  bool at_once = false;
  int64_t device_bytes_max = 1000;
  bool stages = false;
};

class FakeDevice : public Device {
 public:
  FakeDevice(FakeDeviceControl* control, const FakeDeviceOptions& options)
      : control_(control), options_(options) {
    info_.name = options.name;
    info_.kind = "fake";
    info_.slots = options.slots;
    info_.short_slots = options.short_slots;
  }
  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<CallCost> Measure(const Call& call) const override {
    if (call.head_dim == 8) return absl::InvalidArgumentError("head_dim is 8; supported: more");
    return CallCost{call.kv_len, absl::Milliseconds(call.q_heads)};
  }
  int64_t device_bytes_max() const override { return options_.device_bytes_max; }
  std::unique_ptr<DeviceSlot> OpenSlot() override {
    return std::make_unique<FakeSlot>(control_, options_.at_once);
  }
  std::unique_ptr<Staging> Stage(std::span<const std::byte>) override {
    return options_.stages ? std::make_unique<FakeStaging>(control_) : nullptr;
  }
  server::DeviceMemory memory() const override { return {}; }
  absl::Status Health() const override {
    absl::MutexLock lock(&control_->mutex_);
    return control_->health_;
  }

 private:
  FakeDeviceControl* const control_;
  const FakeDeviceOptions options_;
  DeviceInfo info_;
};

// Remembers what it is told.
class RecordingObserver : public SchedulerObserver {
 public:
  void OnRejected(absl::string_view reason) override { Count(reason); }
  void OnDropped(absl::string_view reason) override { Count(reason); }
  void OnBatchLimited(absl::string_view limit) override { Count(limit); }
  void OnBatch(const DeviceInfo&, const Launch&, int64_t requests, int64_t, const BatchResult&) override {
    absl::MutexLock lock(&mutex_);
    batched_ += requests;
  }
  void OnDeviceFault(const DeviceInfo& device, const absl::Status& fault) override {
    Count("fault " + device.name);
    absl::MutexLock lock(&mutex_);
    fault_ = fault;
  }

  int64_t batched() {
    absl::MutexLock lock(&mutex_);
    return batched_;
  }
  int64_t count(const std::string& what) {
    absl::MutexLock lock(&mutex_);
    return counts_[what];
  }
  absl::Status fault() {
    absl::MutexLock lock(&mutex_);
    return fault_;
  }

 private:
  void Count(absl::string_view what) {
    absl::MutexLock lock(&mutex_);
    ++counts_[std::string(what)];
  }

  absl::Mutex mutex_;
  int64_t batched_ = 0;
  std::map<std::string, int64_t> counts_;
  absl::Status fault_;
};

// The answers of a test's jobs, by request id.
class Answers {
 public:
  std::function<void(std::unique_ptr<Job>, absl::Status)> Done() {
    return [this](std::unique_ptr<Job> job, absl::Status status) {
      const std::string id = job->request_id;
      const JobReport report = job->report;
      job.reset();  // gives the admission back before the test hears of it
      absl::MutexLock lock(&mutex_);
      order_.push_back(id);
      reports_[id] = report;
      statuses_.emplace(id, std::move(status));
      changed_.SignalAll();
    };
  }
  int64_t size() {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(order_.size());
  }
  void Await(int64_t count) {
    absl::MutexLock lock(&mutex_);
    while (static_cast<int64_t>(order_.size()) < count) changed_.Wait(&mutex_);
  }
  // Unknown where there is none yet.
  absl::Status status(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    const auto it = statuses_.find(id);
    return it == statuses_.end() ? absl::UnknownError("no answer") : it->second;
  }
  JobReport report(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    return reports_[id];
  }
  std::vector<std::string> order() {
    absl::MutexLock lock(&mutex_);
    return order_;
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<std::string> order_;
  std::map<std::string, absl::Status> statuses_;
  std::map<std::string, JobReport> reports_;
};

struct FakeJob {
  std::string id;
  Call call = FakeCall();
  int64_t host_bytes = 0;
  std::string fair_key = "a";
  absl::Time deadline = absl::InfiniteFuture();
};

// Admits and submits; the admission's id, or the refusal.
// admitted: called between Admit and Submit.
inline absl::StatusOr<uint64_t> SubmitFake(Scheduler& scheduler, Answers& answers, const FakeJob& fake,
                                           const std::function<void()>& admitted = {}) {
  absl::StatusOr<std::unique_ptr<Admission>> admission =
      scheduler.Admit(fake.call, fake.host_bytes, {fake.fair_key, fake.deadline});
  if (!admission.ok()) return admission.status();
  if (admitted) admitted();
  auto job = std::make_unique<Job>();
  job->call = fake.call;
  job->fair_key = fake.fair_key;
  job->deadline = fake.deadline;
  job->request_id = fake.id;
  job->done = answers.Done();
  const uint64_t id = (*admission)->id();
  scheduler.Submit(std::move(job), *std::move(admission));
  return id;
}

inline std::unique_ptr<Scheduler> MakeScheduler(const SchedulerOptions& options, FakeDeviceControl* control,
                                                const FakeDeviceOptions& device,
                                                SchedulerObserver* observer) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FakeDevice>(control, device));
  return Scheduler::Create(options, std::move(devices), observer);
}

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_RUNTIME_FAKE_DEVICE_H_
