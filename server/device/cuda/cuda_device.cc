#include "server/device/cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/device/call_cost.h"
#include "server/device/cuda/batch_plan.h"
#include "server/device/cuda/cuda_region.h"
#include "server/device/cuda/launch_split.h"
#include "server/error.h"
#include "server/memory/region_pool.h"

namespace attend::server {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(50);
constexpr absl::Duration kFaultCheck = absl::Milliseconds(200);
// Copies: about what the first byte waits, and half of what PCIe carries.
constexpr absl::Duration kCopyLatency = absl::Microseconds(20);
constexpr int64_t kPcieBytesPerNs = 20;
// A batch predicted to take less is urgent: its kernels go before those of long ones.
constexpr int64_t kUrgentNs = 200'000;

int64_t AlignUp(int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

class CudaDevice;

class CudaSlot final : public DeviceSlot {
 public:
  explicit CudaSlot(CudaDevice* device) : device_(device) {}
  ~CudaSlot() override;

  absl::Status Open();
  void Run(std::span<const BatchItem> batch, Done done) override;

  // Called by the device with no lock held: begins a batch that has its memory; ends one that the stream
  // has passed.
  void Begin();
  void End();
  // The fault that the stream met so far, without waiting.
  absl::Status Peek();
  int64_t device_bytes() const { return plan_.bytes + workspace_bytes_; }
  int64_t pinned_bytes() const { return pinned_bytes_; }
  void Fail(const absl::Status& status);

  // Of the batch in flight; the device takes and gives them back.
  HostBlock device_block, pinned_block;
  // All copies and kernels of the batch in flight are enqueued, so that a fault of the stream ends it.
  std::atomic<bool> enqueued_all{false};
  // Noted as passed, and what kept the stream from saying so itself; under the device's lock.
  bool passed = false;
  absl::Status notify_status;

 private:
  absl::Status EnqueueAll();
  absl::Status EnqueueParts(std::byte* base);

  CudaDevice* const device_;
  CudaApi::Stream normal_ = nullptr, urgent_ = nullptr, stream_ = nullptr;
  CudaApi::Event events_[4] = {};  // begin, copied in, computed, copied out

  // The batch in flight.
  std::span<const BatchItem> batch_;
  Done done_;
  BatchPlan plan_;
  std::vector<Problem> problems_;
  Launch launch_;
  std::vector<std::vector<Problem>> parts_;
  int64_t workspace_bytes_ = 0, pinned_bytes_ = 0;
  absl::Status enqueued_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options)
      : api_(std::move(api)), options_(options) {}
  ~CudaDevice() override;

  absl::Status Open();

  const DeviceInfo& info() const override { return info_; }
  absl::Status Check(const Call& call) const override;
  int64_t DeviceBytes(const Call& call) const override;
  absl::Duration PredictTime(const Call& call) const override;
  int64_t device_bytes_max() const override { return device_pool_->capacity(); }
  std::unique_ptr<DeviceSlot> OpenSlot() override;
  DeviceMemory memory() const override;
  absl::Status Health() const override;

  CudaApi& api() { return *api_; }
  const CudaDeviceOptions& options() const { return options_; }

  // Begins the slot's batch now, or when there is room for it.
  void Place(CudaSlot* slot);
  // The slot's stream has passed its batch, or never will. Called by the CUDA runtime: only takes note.
  void Passed(CudaSlot* slot, const absl::Status& status);
  void Release(CudaSlot* slot);
  void ReportFault(const absl::Status& fault);

 private:
  // Takes memory for the slot's batch; false where there is no room now.
  bool TryPlace(CudaSlot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompletionLoop();
  // Once per batch, whoever saw it first.
  void NotePassed(CudaSlot* slot, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Batches in flight whose stream met a fault count as passed.
  void FindFaults() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<CudaApi> api_;
  const CudaDeviceOptions options_;
  DeviceInfo info_;
  std::unique_ptr<HostPool> device_pool_, pinned_pool_;

  mutable absl::Mutex mutex_;
  // At most one entry a slot in each.
  std::deque<CudaSlot*> waiting_ ABSL_GUARDED_BY(mutex_);     // for memory
  std::vector<CudaSlot*> in_flight_ ABSL_GUARDED_BY(mutex_);  // begun
  std::deque<CudaSlot*> passed_ ABSL_GUARDED_BY(mutex_);      // by the stream, not yet ended
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  std::thread completion_;
};

// --- CudaSlot

CudaSlot::~CudaSlot() {
  CudaApi& api = device_->api();
  for (CudaApi::Event event : events_) {
    if (event != nullptr) api.DestroyEvent(event);
  }
  if (normal_ != nullptr) api.DestroyStream(normal_);
  if (urgent_ != nullptr) api.DestroyStream(urgent_);
}

absl::Status CudaSlot::Open() {
  CudaApi& api = device_->api();
  auto normal = api.CreateStream(CudaApi::Priority::kNormal);
  if (!normal.ok()) return normal.status();
  normal_ = *normal;
  auto urgent = api.CreateStream(CudaApi::Priority::kUrgent);
  if (!urgent.ok()) return urgent.status();
  urgent_ = *urgent;
  for (CudaApi::Event& event : events_) {
    auto created = api.CreateEvent();
    if (!created.ok()) return created.status();
    event = *created;
  }
  return absl::OkStatus();
}

void CudaSlot::Run(std::span<const BatchItem> batch, Done done) {
  batch_ = batch;
  done_ = std::move(done);
  plan_ = PlanBatch(batch);
  const CudaApi& api = device_->api();

  // Sizes do not depend on addresses: the problems are made again once the range is known.
  problems_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::vector<Problem> made = MakeProblems(*batch[i].call, *batch[i].tensors);
    problems_.insert(problems_.end(), made.begin(), made.end());
  }
  launch_ = MakeLaunch(*batch[0].call, problems_);
  const int sms = api.properties().multiprocessors;
  int64_t predicted_ns = 0;
  for (const Problem& problem : problems_) predicted_ns += PredictNs(launch_, problem, sms);
  stream_ = predicted_ns < kUrgentNs ? urgent_ : normal_;

  parts_ = SplitLaunch(launch_, sms, absl::ToInt64Nanoseconds(device_->options().launch_max));
  workspace_bytes_ = pinned_bytes_ = 0;
  for (const std::vector<Problem>& part : parts_) {
    Launch launch = launch_;
    launch.problems = part;
    // Parts run one after another on the stream and share the workspace. Pinned work lists are read by
    // copies that may not have run when the next part is enqueued, so each part has its own.
    workspace_bytes_ = std::max(workspace_bytes_, AlignUp(api.WorkspaceBytes(launch)));
    pinned_bytes_ += AlignUp(api.PinnedWorkspaceBytes(launch));
  }
  device_->Place(this);
}

void CudaSlot::Begin() {
  enqueued_ = EnqueueAll();
  enqueued_all = true;
  // Whatever was enqueued has to pass before the memory is free.
  const absl::Status notified = device_->api().Notify(
      stream_,
      [](void* slot) {
        auto* self = static_cast<CudaSlot*>(slot);
        self->device_->Passed(self, absl::OkStatus());
      },
      this);
  if (!notified.ok()) device_->Passed(this, notified);
}

absl::Status CudaSlot::EnqueueAll() {
  CudaApi& api = device_->api();
  std::byte* base = device_block.data();
  if (auto s = api.Record(events_[0], stream_); !s.ok()) return s;
  for (const CopyRange& copy : plan_.in) {
    if (auto s = api.CopyIn(base + copy.device_offset, copy.host, copy.bytes, stream_); !s.ok()) return s;
  }
  if (auto s = api.Record(events_[1], stream_); !s.ok()) return s;
  if (auto s = EnqueueParts(base); !s.ok()) return s;
  if (auto s = api.Record(events_[2], stream_); !s.ok()) return s;
  for (const CopyRange& copy : plan_.out) {
    if (auto s = api.CopyOut(copy.host, base + copy.device_offset, copy.bytes, stream_); !s.ok()) return s;
  }
  return api.Record(events_[3], stream_);
}

absl::Status CudaSlot::EnqueueParts(std::byte* base) {
  CudaApi& api = device_->api();
  problems_.clear();
  for (size_t i = 0; i < batch_.size(); ++i) {
    const std::vector<Problem> made = MakeProblems(*batch_[i].call, AtAddress(plan_.tensors[i], base));
    problems_.insert(problems_.end(), made.begin(), made.end());
  }
  launch_.problems = problems_;
  parts_ = SplitLaunch(launch_, api.properties().multiprocessors,
                       absl::ToInt64Nanoseconds(device_->options().launch_max));
  std::byte* workspace = base + plan_.bytes;
  std::byte* pinned = pinned_block.data();
  for (const std::vector<Problem>& part : parts_) {
    Launch launch = launch_;
    launch.problems = part;
    const int64_t pinned_bytes = AlignUp(api.PinnedWorkspaceBytes(launch));
    if (auto s = api.Enqueue(launch, workspace, workspace_bytes_, pinned, pinned_bytes, stream_); !s.ok()) {
      return s;
    }
    pinned += pinned_bytes;
  }
  return absl::OkStatus();
}

void CudaSlot::End() {
  CudaApi& api = device_->api();
  absl::Status status = api.StreamStatus(stream_);
  if (status.ok()) status = enqueued_;
  if (status.ok()) status = notify_status;
  BatchResult result;
  result.items.resize(batch_.size());
  if (status.ok()) {
    const auto elapsed = [&](int from) {
      return api.ElapsedNs(events_[from], events_[from + 1]).value_or(0);
    };
    result.copy_in_ns = elapsed(0);
    result.kernel_ns = elapsed(1);
    result.copy_out_ns = elapsed(2);
  } else if (IsStickyFault(status)) {
    device_->ReportFault(status);
  }
  size_t first = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    result.items[i].status = status;
    Launch launch = launch_;
    launch.problems = std::span(problems_).subspan(first, batch_[i].call->batch);
    first += batch_[i].call->batch;
    if (status.ok()) result.items[i].work = CountWork(launch, api.FlashTile(launch));
  }
  device_->Release(this);
  // The slot may run again from inside done: nothing of it is touched after.
  std::exchange(done_, nullptr)(std::move(result));
}

absl::Status CudaSlot::Peek() { return device_->api().PeekStream(stream_); }

void CudaSlot::Fail(const absl::Status& status) {
  BatchResult result;
  result.items.resize(batch_.size());
  for (ItemResult& item : result.items) item.status = status;
  std::exchange(done_, nullptr)(std::move(result));
}

// --- CudaDevice

CudaDevice::~CudaDevice() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (completion_.joinable()) completion_.join();
}

absl::Status CudaDevice::Open() {
  const CudaApi::Properties& p = api_->properties();
  info_ = {absl::StrCat("cuda:", p.ordinal), "cuda", p.model, p.uuid, p.memory_bytes, options_.slots};
  int64_t device_bytes = options_.device_bytes;
  if (device_bytes == 0) {
    auto free = api_->FreeMemoryBytes();
    if (!free.ok()) return free.status();
    device_bytes = *free / 10 * 9;
  }
  auto device_region = AllocateDeviceRegion(api_, device_bytes);
  if (!device_region.ok()) return device_region.status();
  device_pool_ = CreateRegionPool(*std::move(device_region));
  auto pinned_region = AllocatePinnedRegion(api_, options_.scratch_bytes);
  if (!pinned_region.ok()) return pinned_region.status();
  pinned_pool_ = CreateRegionPool(*std::move(pinned_region));
  completion_ = std::thread([this] { CompletionLoop(); });
  return absl::OkStatus();
}

absl::Status CudaDevice::Check(const Call& call) const {
  const std::vector<Problem> problems = PlaceholderProblems(call);
  const Launch launch = MakeLaunch(call, problems);
  if (auto s = api_->CheckLaunchSupported(launch); !s.ok()) return s;
  const int64_t pinned = AlignUp(api_->PinnedWorkspaceBytes(launch));
  if (pinned > options_.scratch_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the call needs ", pinned, " bytes of work lists; the limit is ", options_.scratch_bytes));
  }
  return absl::OkStatus();
}

int64_t CudaDevice::DeviceBytes(const Call& call) const {
  const std::vector<Problem> problems = PlaceholderProblems(call);
  return TensorDeviceBytes(call) + AlignUp(api_->WorkspaceBytes(MakeLaunch(call, problems)));
}

absl::Duration CudaDevice::PredictTime(const Call& call) const {
  const std::vector<Problem> problems = PlaceholderProblems(call);
  const Launch launch = MakeLaunch(call, problems);
  int64_t ns = absl::ToInt64Nanoseconds(kCopyLatency) + (TensorDeviceBytes(call) / kPcieBytesPerNs);
  for (const Problem& problem : problems) {
    ns += PredictNs(launch, problem, api_->properties().multiprocessors);
  }
  return absl::Nanoseconds(ns);
}

std::unique_ptr<DeviceSlot> CudaDevice::OpenSlot() {
  auto slot = std::make_unique<CudaSlot>(this);
  if (absl::Status status = slot->Open(); !status.ok()) {
    ReportFault(status);
    return nullptr;
  }
  return slot;
}

DeviceMemory CudaDevice::memory() const {
  DeviceMemory memory;
  memory.total = info_.memory_bytes;
  const absl::StatusOr<int64_t> free = api_->FreeMemoryBytes();
  if (free.ok()) memory.free = *free;
  memory.pool = device_pool_->capacity();
  memory.used = device_pool_->used_bytes();
  memory.peak = device_pool_->peak_bytes();
  return memory;
}

absl::Status CudaDevice::Health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

void CudaDevice::ReportFault(const absl::Status& fault) {
  absl::MutexLock lock(&mutex_);
  if (health_.ok()) health_ = fault;
}

bool CudaDevice::TryPlace(CudaSlot* slot) {
  auto device = device_pool_->Allocate(std::max<int64_t>(slot->device_bytes(), 1));
  auto pinned = pinned_pool_->Allocate(std::max<int64_t>(slot->pinned_bytes(), 1));
  if (!device.ok() || !pinned.ok()) return false;
  slot->device_block = *std::move(device);
  slot->pinned_block = *std::move(pinned);
  slot->enqueued_all = false;
  slot->passed = false;
  in_flight_.push_back(slot);
  return true;
}

void CudaDevice::Place(CudaSlot* slot) {
  enum { kBegin, kWait, kRefuse } action = kBegin;
  {
    absl::MutexLock lock(&mutex_);
    // Those that wait go first, or a large batch would wait for ever.
    if (!waiting_.empty() || !TryPlace(slot)) {
      action = in_flight_.empty() ? kRefuse : kWait;
      if (action == kWait) waiting_.push_back(slot);
    }
  }
  if (action == kBegin) slot->Begin();
  if (action == kRefuse) {
    slot->Fail(Exhausted("DEVICE_MEMORY",
                         absl::StrCat("the batch needs ", slot->device_bytes(),
                                      " bytes of device memory; the limit is ", device_pool_->capacity()),
                         kRetry));
  }
}

void CudaDevice::Passed(CudaSlot* slot, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  NotePassed(slot, status);
}

void CudaDevice::NotePassed(CudaSlot* slot, const absl::Status& status) {
  if (std::exchange(slot->passed, true)) return;
  slot->notify_status = status;
  passed_.push_back(slot);
}

void CudaDevice::Release(CudaSlot* slot) {
  slot->device_block = HostBlock();
  slot->pinned_block = HostBlock();
  std::vector<CudaSlot*> begin;
  {
    absl::MutexLock lock(&mutex_);
    std::erase(in_flight_, slot);
    while (!waiting_.empty() && TryPlace(waiting_.front())) {
      begin.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }
  for (CudaSlot* next : begin) next->Begin();
}

void CudaDevice::CompletionLoop() {
  while (true) {
    CudaSlot* slot = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || !passed_.empty(); };
      // After a sticky fault the runtime calls no notification any more: look for one now and then.
      if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kFaultCheck)) {
        FindFaults();
        continue;
      }
      if (passed_.empty()) return;
      slot = passed_.front();
      passed_.pop_front();
    }
    slot->End();
  }
}

void CudaDevice::FindFaults() {
  for (CudaSlot* slot : in_flight_) {
    if (!slot->enqueued_all) continue;
    if (absl::Status status = slot->Peek(); !status.ok()) NotePassed(slot, status);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(std::shared_ptr<CudaApi> api,
                                                       const CudaDeviceOptions& options) {
  auto device = std::make_unique<CudaDevice>(std::move(api), options);
  if (absl::Status status = device->Open(); !status.ok()) return status;
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace attend::server
