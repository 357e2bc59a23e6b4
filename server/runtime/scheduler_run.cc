// Batches: formed when a slot is free, run by the device, taken apart when done.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/runtime/scheduler_core.h"

namespace attend::server {
namespace {

// The core whose batches this thread is handing to slots. A device that finishes inside Run would
// otherwise pump inside a pump, without end.
thread_local const void* pumping = nullptr;

}  // namespace

void SchedulerCore::Pump() {
  if (pumping == this) return;  // the outer one looks again
  const void* const outer = std::exchange(pumping, this);
  while (Batch* const batch = FormBatch()) {
    DeviceSlot* const slot = states_[batch->device].slots[batch->slot].slot.get();
    const std::span<const BatchItem> items = batch->items;
    mutex_.Unlock();
    slot->Run(items, [this, batch](BatchResult result) { OnBatchDone(batch, std::move(result)); });
    mutex_.Lock();
  }
  pumping = outer;
}

SchedulerCore::Batch* SchedulerCore::FormBatch() {
  if (queue_.size() == 0) return nullptr;
  absl::InlinedVector<int, 8> free;  // the device with the least to do first, as a rule
  int64_t idle = 0;
  for (size_t d = 0; d < states_.size(); ++d) {
    if (states_[d].free_slots == 0 || (sound_devices_ >> d & 1) == 0) continue;
    free.push_back(static_cast<int>(d));
    if (states_[d].outstanding == absl::ZeroDuration()) ++idle;
  }
  // What is next goes where it has been staged, if there is a slot, and else anywhere at once.
  const int staged_on = queue_.Next()->staged_on;
  const auto before = [this, staged_on](int a, int b) {
    return std::tuple(a != staged_on, states_[a].outstanding, a) <
           std::tuple(b != staged_on, states_[b].outstanding, b);
  };
  std::sort(free.begin(), free.end(), before);
  for (const int d : free) {
    const DeviceState& state = states_[d];
    const int slots = static_cast<int>(state.slots.size());
    BatchBounds bounds;
    bounds.device = d;
    bounds.long_allowed = state.long_running < std::max(1, slots - 1);
    const int short_slots = devices_[d]->info().short_slots;
    bounds.short_allowed = short_slots == 0 || state.short_running < short_slots;
    bounds.device_bytes = devices_[d]->device_bytes_max() - state.bytes_used;
    bounds.requests = options_.batch_requests_max;
    bounds.tokens = options_.batch_tokens_max;
    bounds.host_bytes = options_.batch_bytes_max;
    // Where several devices are idle, each takes its share of what waits.
    bounds.cost = std::min(options_.batch_time_max, queue_.cost() / std::max<int64_t>(idle, 1));
    absl::string_view limit;
    std::vector<Entry*> entries = queue_.TakeBatch(bounds, &limit);
    if (!limit.empty()) observer_->OnBatchLimited(limit);
    if (!entries.empty()) return StartBatch(d, std::move(entries));
  }
  return nullptr;
}

SchedulerCore::Batch* SchedulerCore::StartBatch(int device, std::vector<Entry*> entries) {
  DeviceState& state = states_[device];
  auto owned = std::make_unique<Batch>();
  Batch* const batch = owned.get();
  batch->id = next_id_++;
  batch->device = device;
  batch->started = clock_->Now();
  while (state.slots[batch->slot].busy) ++batch->slot;
  state.slots[batch->slot].busy = true;
  --state.free_slots;
  batch->entries = std::move(entries);
  for (Entry* const entry : batch->entries) {
    LeaveQueue(entry);
    entry->state = EntryState::kRunning;
    entry->job->report.queue_ns = absl::ToInt64Nanoseconds(batch->started - entry->submitted);
    Staging* const staging = Unstage(entry) == device ? entry->job->staging.get() : nullptr;
    batch->items.push_back({&entry->job->call, &entry->job->tensors, entry->group.short_request, staging});
    batch->tokens += entry->tokens;
    batch->device_bytes += entry->device_bytes[device];
    batch->cost += entry->cost;
  }
  state.bytes_used += batch->device_bytes;
  state.outstanding += batch->cost;
  state.pace.Begin(batch->started);
  state.short_running += batch->entries[0]->group.short_request ? 1 : 0;
  if (batch->entries[0]->group.long_request) {
    ++state.long_running;
    state.outstanding_long += batch->cost;
  }
  // It may have to wait for what runs beside it.
  batch->hang_after = std::max(options_.hang_floor, options_.hang_factor * state.outstanding);
  batch->look = batch->started + batch->hang_after / 2;
  timers_.emplace(batch->look, TimerKind::kHang, batch->id);
  WakeTimers();
  batches_.emplace(batch->id, std::move(owned));
  return batch;
}

void SchedulerCore::OnBatchDone(Batch* batch, BatchResult result) {
  const GroupKey& group = batch->entries[0]->group;
  Launch launch;
  launch.kernel = group.kernel;
  launch.dtype = group.dtype;
  launch.head_dim = group.head_dim;
  launch.v_head_dim = group.v_head_dim;
  const int device = batch->device;
  // A device that breaks its contract must not give one caller another's answer.
  result.items.resize(batch->items.size(), {absl::InternalError("the device lost this request"), {}});
  observer_->OnBatch(devices_[device]->info(), launch, static_cast<int64_t>(batch->entries.size()),
                     batch->tokens, result);
  const absl::Status health = devices_[device]->Health();

  Outbox outbox;
  {
    absl::MutexLock lock(&mutex_);
    FinishBatch(*batch, result, &outbox);
    DeviceState& state = states_[device];
    state.slots[batch->slot].busy = false;
    ++state.free_slots;
    state.bytes_used -= batch->device_bytes;
    state.outstanding -= batch->cost;
    state.pace.End(batch->cost, clock_->Now());
    state.short_running -= group.short_request ? 1 : 0;
    if (group.long_request) {
      --state.long_running;
      state.outstanding_long -= batch->cost;
    }
    timers_.erase({batch->look, TimerKind::kHang, batch->id});
    batches_.erase(batches_.find(batch->id));
    if (!health.ok()) MarkFault(device, health, &outbox);
    Pump();  // before the answers: the device has work while they are written
    if (batches_.empty()) changed_.SignalAll();
  }
  Deliver(&outbox);
}

void SchedulerCore::FinishBatch(const Batch& batch, BatchResult& result, Outbox* outbox) {
  const absl::Time now = clock_->Now();
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    Entry* const entry = batch.entries[i];
    JobReport& report = entry->job->report;
    report.kernel = entry->group.kernel;
    report.device = devices_[batch.device]->info().name;
    report.work = result.items[i].work;
    report.copy_in_ns = result.copy_in_ns;
    report.kernel_ns = result.kernel_ns;
    report.copy_out_ns = result.copy_out_ns;
    report.batch_requests = static_cast<int64_t>(batch.entries.size());
    absl::Status status = std::move(result.items[i].status);
    if (entry->cancelled) {
      status = absl::CancelledError("the caller is gone");
    } else if (entry->job->deadline <= now) {
      status = absl::DeadlineExceededError("the deadline passed while the request ran");
    }
    Finish(entry, std::move(status), outbox);
  }
}

void SchedulerCore::MarkFault(int device, const absl::Status& fault, Outbox* outbox) {
  if (!states_[device].fault.ok()) return;
  const std::string& name = devices_[device]->info().name;
  states_[device].fault = absl::Status(fault.code(), absl::StrCat(name, ": ", fault.message()));
  if (health_.ok()) health_ = states_[device].fault;
  sound_devices_ &= ~(uint64_t{1} << device);
  outbox->faults.emplace_back(device, states_[device].fault);
  DropWaiting(ErrorWithReason(absl::StatusCode::kUnavailable, "DEVICE_FAILED",
                              absl::StrCat("the device has failed: ", fault.message())),
              outbox);
}

}  // namespace attend::server
