#include "server/device/cuda/cuda_slot.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/device/call_cost.h"
#include "server/device/cuda/launch_split.h"
#include "server/device/cuda/staging.h"

namespace attend::server {
namespace {

// Where a batch is taken to lie until it has its memory. Cuts depend on alignment alone, scratch on distances
// between tensors as well, which what has been staged elsewhere does not keep.
std::byte* const kNowhere = reinterpret_cast<std::byte*>(kDeviceAlignment);

}  // namespace

CudaSlot::~CudaSlot() {
  CudaApi& api = owner_->api();
  if (normal_ != nullptr) api.DestroyStream(normal_);
  if (urgent_ != nullptr) api.DestroyStream(urgent_);
  for (CudaApi::Event event : events_) {
    if (event != nullptr) api.DestroyEvent(event);
  }
}

absl::Status CudaSlot::Open() {
  CudaApi& api = owner_->api();
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
  const CudaApi& api = owner_->api();

  problems_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::vector<Problem> made = MakeProblems(*batch[i].call, AtAddress(plan_.tensors[i], kNowhere));
    problems_.insert(problems_.end(), made.begin(), made.end());
  }
  launch_ = MakeLaunch(*batch[0].call, problems_);
  stream_ = batch[0].short_request ? urgent_ : normal_;

  parts_ =
      SplitLaunch(launch_, api.properties().multiprocessors, absl::ToInt64Nanoseconds(owner_->launch_max()));
  workspace_bytes_ = pinned_bytes_ = 0;
  part_pinned_bytes_.clear();
  for (const std::vector<Problem>& part : parts_) {
    Launch launch = launch_;
    launch.problems = part;
    std::vector<Problem> placed;
    if (!plan_.staged.empty()) {
      placed = part;
      MoveTo(kNowhere, &placed);
      launch.problems = placed;
    }
    // What the device does not take, Enqueue refuses as well, with the same words.
    const CudaApi::WorkspaceNeed need = api.WorkspaceNeedOf(launch).value_or(CudaApi::WorkspaceNeed());
    // Parts run one after another on the stream and share the workspace. Pinned work lists are read by
    // copies that may not have run when the next part is enqueued, so each part has its own.
    workspace_bytes_ = std::max(workspace_bytes_, AlignForDevice(need.device_bytes));
    part_pinned_bytes_.push_back(AlignForDevice(need.pinned_bytes));
    pinned_bytes_ += part_pinned_bytes_.back();
  }
  owner_->Place(this);
}

void CudaSlot::Begin() {
  begun = absl::Now();
  enqueued_ = EnqueueAll();
  // Whatever was enqueued has to pass before the memory is free.
  recorded_ = owner_->api().Record(events_[kEnded], stream_);
  owner_->Watch(this);
}

absl::Status CudaSlot::EnqueueAll() {
  CudaApi& api = owner_->api();
  std::byte* base = device_block.data();
  std::vector<CudaApi::Transfer> transfers;
  for (const CopyRange& copy : plan_.in)
    transfers.push_back({base + copy.device_offset, copy.host, copy.bytes});
  if (auto s = api.Record(events_[kBegun], stream_); !s.ok()) return s;
  if (auto s = api.CopyIn(transfers, stream_); !s.ok()) return s;
  if (auto s = AwaitStaged(); !s.ok()) return s;
  if (auto s = api.Record(events_[kThere], stream_); !s.ok()) return s;
  if (auto s = EnqueueParts(base); !s.ok()) return s;
  if (auto s = api.Record(events_[kComputed], stream_); !s.ok()) return s;
  transfers.clear();
  for (const CopyRange& copy : plan_.out)
    transfers.push_back({copy.host, base + copy.device_offset, copy.bytes});
  return api.CopyOut(transfers, stream_);
}

absl::Status CudaSlot::AwaitStaged() {
  if (plan_.staged.empty()) return absl::OkStatus();
  if (auto s = owner_->api().Record(events_[kCopied], stream_); !s.ok()) return s;
  for (const BatchItem& item : batch_) {
    if (item.staging == nullptr) continue;
    if (auto s = AsCuda(*item.staging).EnqueueWait(stream_); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void CudaSlot::MoveTo(std::byte* base, std::vector<Problem>* problems) const {
  for (Problem& problem : *problems) {
    MoveTensors([&](std::byte* tensor) { return plan_.Address(tensor - kNowhere, base); }, &problem);
  }
}

absl::Status CudaSlot::EnqueueParts(std::byte* base) {
  CudaApi& api = owner_->api();
  std::byte* workspace = base + plan_.bytes;
  std::byte* pinned = pinned_block.data();
  for (size_t i = 0; i < parts_.size(); ++i) {
    MoveTo(base, &parts_[i]);
    Launch launch = launch_;
    launch.problems = parts_[i];
    if (auto s = api.Enqueue(launch, workspace, workspace_bytes_, pinned, part_pinned_bytes_[i], stream_);
        !s.ok()) {
      return s;
    }
    pinned += part_pinned_bytes_[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaSlot::Passed() {
  const absl::StatusOr<bool> passed = recorded_.ok() ? owner_->api().Passed(events_[kEnded]) : recorded_;
  if (passed.ok() || IsStickyFault(passed.status())) return passed;
  // The event says nothing, and as long as the GPU may write to the batch's memory nobody else may have it.
  const absl::Status waited = owner_->api().AwaitStream(stream_);
  return waited.ok() ? passed : waited;
}

void CudaSlot::End(const absl::Status& passed) {
  CudaApi& api = owner_->api();
  // What went wrong first, but for a fault that ends the device.
  const absl::Status status = enqueued_.ok() || IsStickyFault(passed) ? passed : enqueued_;
  BatchResult result;
  result.items.resize(batch_.size());
  if (status.ok()) {
    CountTimes(&result);
  } else if (IsStickyFault(status)) {
    owner_->ReportFault(status);
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
  owner_->Release(this);
  // The slot may run again from inside done: nothing of it is touched after.
  std::exchange(done_, nullptr)(std::move(result));
}

void CudaSlot::CountTimes(BatchResult* result) const {
  const auto elapsed = [&](int from, int to) {
    return owner_->api().ElapsedNs(events_[from], events_[to]).value_or(0);
  };
  result->copy_in_ns = elapsed(kBegun, kThere);
  result->kernel_ns = elapsed(kThere, kComputed);
  result->copy_out_ns = elapsed(kComputed, kEnded);
  for (const CopyRange& copy : plan_.in) result->copy_in_bytes += copy.bytes;
  for (const CopyRange& copy : plan_.out) result->copy_out_bytes += copy.bytes;
  if (plan_.staged.empty()) {
    result->copying_in_ns = result->copy_in_ns;
    return;
  }
  if (!plan_.in.empty()) result->copying_in_ns = elapsed(kBegun, kCopied);
  for (const BatchItem& item : batch_) {
    if (item.staging == nullptr) continue;
    const CudaStaging::Figures figures = AsCuda(*item.staging).figures();
    result->copy_in_bytes += figures.bytes;
    result->copying_in_ns += figures.ns;
  }
}

void CudaSlot::Fail(const absl::Status& status) {
  BatchResult result;
  result.items.resize(batch_.size());
  for (ItemResult& item : result.items) item.status = status;
  std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace attend::server
