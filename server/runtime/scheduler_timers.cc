// Time: deadlines of what waits, the end of waiting for company, and launches that never end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/error.h"
#include "server/runtime/scheduler_core.h"

namespace attend::server {
namespace {

constexpr absl::Duration kLongestSleep = absl::Seconds(1);

}  // namespace

void SchedulerCore::WakeTimers() {
  if (!timers_.empty() && std::get<absl::Time>(*timers_.begin()) < timers_wake_) timers_changed_.Signal();
}

void SchedulerCore::RunTimers() {
  absl::MutexLock lock(&mutex_);
  while (!timers_stop_) {
    const absl::Time now = clock_->Now();
    Outbox outbox;
    bool fired = false;
    while (!timers_.empty() && std::get<absl::Time>(*timers_.begin()) <= now) {
      const Timer timer = *timers_.begin();
      timers_.erase(timers_.begin());
      Fire(timer, now, &outbox);
      fired = true;
    }
    if (fired) {
      Pump();
      mutex_.Unlock();
      Deliver(&outbox);
      mutex_.Lock();
      continue;
    }
    // Not for ever where there is no timer: the next batch would wake this thread for a timer that is gone
    // when it looks, and so would every batch after it.
    timers_wake_ = now + kLongestSleep;
    if (!timers_.empty()) timers_wake_ = std::min(timers_wake_, std::get<absl::Time>(*timers_.begin()));
    clock_->WaitUntil(&timers_changed_, &mutex_, timers_wake_);
    timers_wake_ = absl::InfinitePast();
  }
}

void SchedulerCore::Fire(const Timer& timer, absl::Time now, Outbox* outbox) {
  const auto& [time, kind, id] = timer;
  if (kind == TimerKind::kHang) {
    const auto batch = batches_.find(id);
    if (batch != batches_.end()) FireHang(batch->second.get(), now, outbox);
    return;
  }
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second->state != EntryState::kWaiting) return;
  Entry* const entry = it->second.get();
  if (kind == TimerKind::kReady) {
    queue_.SetReady(entry);
  } else {
    Finish(entry, absl::DeadlineExceededError("the deadline passed while the request waited"), outbox);
  }
}

void SchedulerCore::FireHang(Batch* batch, absl::Time now, Outbox* outbox) {
  // Two looks, each after half of the time: a machine that was suspended, or whose clock was set, comes
  // back with all timers due at once, and the batch has the second half to prove itself.
  if (!batch->suspected) {
    batch->suspected = true;
    batch->look = now + batch->hang_after / 2;
    timers_.emplace(batch->look, TimerKind::kHang, batch->id);
    return;
  }
  MarkFault(
      batch->device,
      ErrorWithReason(absl::StatusCode::kInternal, "DEVICE_HUNG",
                      absl::StrCat("hangs: a batch of ", batch->entries.size(),
                                   " requests, predicted to take ", absl::FormatDuration(batch->cost),
                                   ", has not ended after ", absl::FormatDuration(now - batch->started))),
      outbox);
}

}  // namespace attend::server
