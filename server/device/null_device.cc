#include "server/device/null_device.h"

#include <cstring>
#include <deque>
#include <limits>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/device/call_cost.h"

namespace attend::server {
namespace {

void Zero(void* data, int64_t bytes) {
  if (data != nullptr && bytes > 0) memset(data, 0, bytes);
}

void Answer(std::span<const BatchItem> batch, absl::Duration launch_time, const DeviceSlot::Done& done) {
  for (const BatchItem& item : batch) {
    Zero(item.tensors->out, item.call->out_bytes());
    Zero(item.tensors->lse, item.call->lse_bytes());
    Zero(item.tensors->weights, item.call->weights_bytes());
  }
  BatchResult result;
  result.items.resize(batch.size());
  result.kernel_ns = absl::ToInt64Nanoseconds(launch_time);
  done(std::move(result));
}

// Ends batches one after another, each after the time of a launch.
class Launches {
 public:
  explicit Launches(absl::Duration time) : time_(time), thread_([this] { Loop(); }) {}
  ~Launches() {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    thread_.join();
  }

  void Add(std::span<const BatchItem> batch, DeviceSlot::Done done) {
    absl::MutexLock lock(&mutex_);
    waiting_.emplace_back(batch, std::move(done));
  }

 private:
  void Loop() {
    const auto ready = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || !waiting_.empty(); };
    while (true) {
      std::pair<std::span<const BatchItem>, DeviceSlot::Done> next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&ready));
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      absl::SleepFor(time_);
      Answer(next.first, time_, next.second);
    }
  }

  const absl::Duration time_;
  absl::Mutex mutex_;
  // At most one a slot.
  std::deque<std::pair<std::span<const BatchItem>, DeviceSlot::Done>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class NullSlot : public DeviceSlot {
 public:
  explicit NullSlot(Launches* launches) : launches_(launches) {}
  void Run(std::span<const BatchItem> batch, Done done) override {
    if (launches_ == nullptr) return Answer(batch, absl::ZeroDuration(), done);
    launches_->Add(batch, std::move(done));
  }

 private:
  Launches* const launches_;
};

class NullDevice : public Device {
 public:
  explicit NullDevice(const NullDeviceOptions& options) {
    info_.name = "null";
    info_.kind = "null";
    info_.model = "answers zeros";
    info_.slots = options.slots;
    if (options.launch_time > absl::ZeroDuration()) {
      launches_ = std::make_unique<Launches>(options.launch_time);
    }
  }

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<CallCost> Measure(const Call& call) const override {
    const std::vector<Problem> problems = PlaceholderProblems(call);
    if (absl::Status status = CheckLaunch(MakeLaunch(call, problems)); !status.ok()) return status;
    constexpr double kBytesPerSecond = 4e9;
    return CallCost{0, absl::Microseconds(1) + absl::Seconds(TensorBytes(call) / kBytesPerSecond)};
  }
  int64_t device_bytes_max() const override { return std::numeric_limits<int64_t>::max(); }
  std::unique_ptr<DeviceSlot> OpenSlot() override { return std::make_unique<NullSlot>(launches_.get()); }
  DeviceMemory memory() const override { return {}; }
  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  DeviceInfo info_;
  std::unique_ptr<Launches> launches_;
};

}  // namespace

std::unique_ptr<Device> CreateNullDevice(const NullDeviceOptions& options) {
  return std::make_unique<NullDevice>(options);
}

}  // namespace attend::server
