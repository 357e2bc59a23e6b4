#include "server/device/cuda/cuda_device.h"

#include <sys/prctl.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/device/call_cost.h"
#include "server/device/cuda/batch_plan.h"
#include "server/device/cuda/cuda_region.h"
#include "server/device/cuda/launch_split.h"
#include "server/error.h"
#include "server/memory/region_pool.h"

namespace attend::server {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(50);
// How the completion thread asks: at once while there is one batch and it is younger than this; else after
// pauses that grow with the age of the newest. Where more are in flight, somebody waits anyway, and the CPU
// has calls to carry.
constexpr absl::Duration kYoung = absl::Microseconds(100);
constexpr int64_t kAgeShare = 8;
constexpr absl::Duration kPauseLeast = absl::Microseconds(10);
constexpr absl::Duration kPauseMax = absl::Milliseconds(1);
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
  // has passed, or never will.
  void Begin();
  void End(const absl::Status& passed);
  // Whether the stream has passed the batch; the fault that keeps it from doing so.
  absl::StatusOr<bool> Passed();
  int64_t device_bytes() const { return plan_.bytes + workspace_bytes_; }
  int64_t pinned_bytes() const { return pinned_bytes_; }
  void Fail(const absl::Status& status);

  // Of the batch in flight; the device takes and gives them back.
  HostBlock device_block, pinned_block;
  absl::Time begun;

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
  absl::Status recorded_;  // of the last event: not OK, and it says nothing
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
  // All of the slot's batch is enqueued: its end is looked for.
  void Watch(CudaSlot* slot);
  void Release(CudaSlot* slot);
  void ReportFault(const absl::Status& fault);

 private:
  // Takes memory for the slot's batch; false where there is no room now.
  bool TryPlace(CudaSlot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompletionLoop();
  // What is in flight, the oldest first; waits until something is. Empty when the device closes.
  std::vector<CudaSlot*> AwaitWatched();

  const std::shared_ptr<CudaApi> api_;
  const CudaDeviceOptions options_;
  DeviceInfo info_;
  std::unique_ptr<HostPool> device_pool_, pinned_pool_;

  mutable absl::Mutex mutex_;
  // At most one entry a slot in each.
  std::deque<CudaSlot*> waiting_ ABSL_GUARDED_BY(mutex_);     // for memory
  std::vector<CudaSlot*> in_flight_ ABSL_GUARDED_BY(mutex_);  // begun
  std::vector<CudaSlot*> watched_ ABSL_GUARDED_BY(mutex_);    // enqueued whole, the oldest first
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  std::thread completion_;
};

// --- CudaSlot

CudaSlot::~CudaSlot() {
  CudaApi& api = device_->api();
  if (normal_ != nullptr) api.DestroyStream(normal_);
  if (urgent_ != nullptr) api.DestroyStream(urgent_);
  for (CudaApi::Event event : events_) {
    if (event != nullptr) api.DestroyEvent(event);
  }
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
  begun = absl::Now();
  enqueued_ = EnqueueAll();
  // Whatever was enqueued has to pass before the memory is free.
  recorded_ = device_->api().Record(events_[3], stream_);
  device_->Watch(this);
}

absl::Status CudaSlot::EnqueueAll() {
  CudaApi& api = device_->api();
  std::byte* base = device_block.data();
  std::vector<CudaApi::Transfer> transfers;
  for (const CopyRange& copy : plan_.in)
    transfers.push_back({base + copy.device_offset, copy.host, copy.bytes});
  if (auto s = api.Record(events_[0], stream_); !s.ok()) return s;
  if (auto s = api.CopyIn(transfers, stream_); !s.ok()) return s;
  if (auto s = api.Record(events_[1], stream_); !s.ok()) return s;
  if (auto s = EnqueueParts(base); !s.ok()) return s;
  if (auto s = api.Record(events_[2], stream_); !s.ok()) return s;
  transfers.clear();
  for (const CopyRange& copy : plan_.out)
    transfers.push_back({copy.host, base + copy.device_offset, copy.bytes});
  return api.CopyOut(transfers, stream_);
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

absl::StatusOr<bool> CudaSlot::Passed() {
  const absl::StatusOr<bool> passed = recorded_.ok() ? device_->api().Passed(events_[3]) : recorded_;
  if (passed.ok() || IsStickyFault(passed.status())) return passed;
  // The event says nothing, and as long as the GPU may write to the batch's memory nobody else may have it.
  const absl::Status waited = device_->api().AwaitStream(stream_);
  return waited.ok() ? passed : waited;
}

void CudaSlot::End(const absl::Status& passed) {
  CudaApi& api = device_->api();
  // What went wrong first, but for a fault that ends the device.
  const absl::Status status = enqueued_.ok() || IsStickyFault(passed) ? passed : enqueued_;
  BatchResult result;
  result.items.resize(batch_.size());
  if (status.ok()) {
    const auto elapsed = [&](int from) {
      return api.ElapsedNs(events_[from], events_[from + 1]).value_or(0);
    };
    result.copy_in_ns = elapsed(0);
    result.kernel_ns = elapsed(1);
    result.copy_out_ns = elapsed(2);
    for (const CopyRange& copy : plan_.in) result.copy_in_bytes += copy.bytes;
    for (const CopyRange& copy : plan_.out) result.copy_out_bytes += copy.bytes;
  } else if (IsStickyFault(status)) {
    device_->ReportFault(status);
  }
  size_t first = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    result.items[i].status = status;
    Launch launch = launch_;
    launch.problems = std::span(problems_).subspan(first, batch_[i].call->batch);
    first += batch_[i].call->batch;
    if (!status.ok()) continue;
    const TileShape tile = api.FlashTile(launch);
    result.items[i].work = CountWork(launch, tile);
    result.items[i].saved_bytes = SavedBytes(launch, result.items[i].work, tile);
  }
  device_->Release(this);
  // The slot may run again from inside done: nothing of it is touched after.
  std::exchange(done_, nullptr)(std::move(result));
}

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
  info_ = {absl::StrCat("cuda:", p.ordinal),
           "cuda",
           p.model,
           p.uuid,
           p.memory_bytes,
           options_.slots,
           options_.short_slots};
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

void CudaDevice::Watch(CudaSlot* slot) {
  absl::MutexLock lock(&mutex_);
  watched_.push_back(slot);
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

std::vector<CudaSlot*> CudaDevice::AwaitWatched() {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || !watched_.empty(); };
  mutex_.Await(absl::Condition(&ready));
  return watched_;
}

void CudaDevice::CompletionLoop() {
  prctl(PR_SET_TIMERSLACK, 1000);  // in nanoseconds: the usual 50 us would double a short sleep
  while (true) {
    const std::vector<CudaSlot*> watched = AwaitWatched();
    if (watched.empty()) return;
    bool ended = false;
    for (CudaSlot* slot : watched) {
      const absl::StatusOr<bool> passed = slot->Passed();
      if (passed.ok() && !*passed) continue;
      {
        absl::MutexLock lock(&mutex_);
        std::erase(watched_, slot);
      }
      slot->End(passed.status());
      ended = true;
    }
    if (ended) continue;
    const absl::Duration age = absl::Now() - watched.back()->begun;
    if (watched.size() == 1 && age < kYoung) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(std::clamp(age / kAgeShare, kPauseLeast, kPauseMax));
    }
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
