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
#include "server/device/cuda/cuda_slot.h"
#include "server/device/cuda/launch_split.h"
#include "server/device/cuda/staging.h"
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
// Of a device's memory, one part in so many at most is for what comes ahead of its batch.
constexpr int64_t kStagingShare = 16;

class CudaDevice final : public Device, private CudaSlot::Owner {
 public:
  CudaDevice(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options)
      : api_(std::move(api)), options_(options) {}
  ~CudaDevice() override;

  absl::Status Open();

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<CallCost> Measure(const Call& call) const override;
  int64_t device_bytes_max() const override { return device_pool_->capacity(); }
  std::unique_ptr<DeviceSlot> OpenSlot() override;
  std::unique_ptr<Staging> Stage(std::span<const std::byte> inputs) override;
  DeviceMemory memory() const override;
  absl::Status Health() const override;

 private:
  CudaApi& api() override { return *api_; }
  absl::Duration launch_max() const override { return options_.launch_max; }
  void Place(CudaSlot* slot) override;
  void Watch(CudaSlot* slot) override;
  void Release(CudaSlot* slot) override;
  void ReportFault(const absl::Status& fault) override;

  // Takes memory for the slot's batch; false where there is no room now.
  bool TryPlace(CudaSlot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompletionLoop();
  // What is in flight, the oldest first; waits until something is. Empty when the device closes.
  std::vector<CudaSlot*> AwaitWatched();

  const std::shared_ptr<CudaApi> api_;
  const CudaDeviceOptions options_;
  DeviceInfo info_;
  std::unique_ptr<NvmlDevice> nvml_;  // null: CUDA tells the memory
  std::unique_ptr<HostPool> device_pool_, pinned_pool_;
  std::shared_ptr<Stager> stager_;  // null: nothing is copied ahead

  mutable absl::Mutex mutex_;
  // At most one entry a slot in each.
  std::deque<CudaSlot*> waiting_ ABSL_GUARDED_BY(mutex_);     // for memory
  std::vector<CudaSlot*> in_flight_ ABSL_GUARDED_BY(mutex_);  // begun
  std::vector<CudaSlot*> watched_ ABSL_GUARDED_BY(mutex_);    // enqueued whole, the oldest first
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  std::thread completion_;
};

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
  auto nvml = NvmlDevice::Open(options_.nvml_library, p.uuid, p.memory_bytes);
  info_.memory_source = nvml.ok() ? "NVML" : absl::StrCat("CUDA: ", nvml.status().message());
  if (nvml.ok()) nvml_ = *std::move(nvml);
  int64_t device_bytes = options_.device_bytes;
  if (device_bytes == 0) {
    auto free = api_->FreeMemoryBytes();
    if (!free.ok()) return free.status();
    device_bytes = *free / 10 * 9;
  }
  const int64_t staging_bytes = std::min(options_.staging_bytes, device_bytes / kStagingShare);
  if (staging_bytes >= options_.staged_request_bytes_min) {
    auto stager = Stager::Create(api_, staging_bytes, options_.staged_request_bytes_min);
    if (!stager.ok()) return stager.status();
    stager_ = *std::move(stager);
    device_bytes -= stager_->capacity();
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

absl::StatusOr<CallCost> CudaDevice::Measure(const Call& call) const {
  const std::vector<Problem> problems = PlaceholderProblems(call);
  const Launch launch = MakeLaunch(call, problems);
  const absl::StatusOr<CudaApi::WorkspaceNeed> need = api_->WorkspaceNeedOf(launch);
  if (!need.ok()) return need.status();
  const int64_t pinned = AlignForDevice(need->pinned_bytes);
  if (pinned > options_.scratch_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the call needs ", pinned, " bytes of work lists; the limit is ", options_.scratch_bytes));
  }
  const int64_t tensor_bytes = TensorDeviceBytes(call);
  absl::Duration time = kCopyLatency + absl::Nanoseconds(tensor_bytes / kPcieBytesPerNs);
  for (const Problem& problem : problems) {
    time += absl::Nanoseconds(PredictNs(launch, problem, api_->properties().multiprocessors));
  }
  return CallCost{tensor_bytes + AlignForDevice(need->device_bytes), time};
}

std::unique_ptr<DeviceSlot> CudaDevice::OpenSlot() {
  CudaSlot::Owner* const owner = this;
  auto slot = std::make_unique<CudaSlot>(owner);
  if (absl::Status status = slot->Open(); !status.ok()) {
    ReportFault(status);
    return nullptr;
  }
  return slot;
}

std::unique_ptr<Staging> CudaDevice::Stage(std::span<const std::byte> inputs) {
  return stager_ != nullptr ? stager_->Stage(inputs) : nullptr;
}

DeviceMemory CudaDevice::memory() const {
  DeviceMemory memory;
  absl::StatusOr<NvmlDevice::Memory> told = absl::UnavailableError("no NVML");
  if (nvml_ != nullptr) told = nvml_->ReadMemory();
  if (told.ok()) {
    memory.total = told->total;
    memory.free = told->free;
  } else {
    memory.total = info_.memory_bytes;
    const absl::StatusOr<int64_t> free = api_->FreeMemoryBytes();
    if (free.ok()) memory.free = *free;
  }
  memory.pool = device_pool_->capacity();
  memory.used = device_pool_->used_bytes();
  memory.peak = device_pool_->peak_bytes();
  if (stager_ != nullptr) {
    memory.staging = stager_->capacity();
    memory.staging_used = stager_->used_bytes();
    memory.staging_peak = stager_->peak_bytes();
  }
  return memory;
}

absl::Status CudaDevice::Health() const {
  {
    absl::MutexLock lock(&mutex_);
    if (!health_.ok()) return health_;
  }
  return stager_ != nullptr ? stager_->Health() : absl::OkStatus();
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
