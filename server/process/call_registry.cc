#include "server/process/call_registry.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace attend::server {

CallRegistry::CallRegistry(int64_t members_max, absl::Duration interval)
    : members_max_(members_max), sweeper_([this, interval] { Sweep(interval); }) {}

CallRegistry::~CallRegistry() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stop_.Signal();
  }
  sweeper_.join();
}

bool CallRegistry::Add(Member* member, Handle* handle) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || static_cast<int64_t>(members_.size()) >= members_max_) {
    last_refused_ = absl::Now();
    return false;
  }
  *handle = members_.insert(members_.end(), member);
  return true;
}

void CallRegistry::Remove(Handle handle) {
  absl::MutexLock lock(&mutex_);
  members_.erase(handle);
  if (members_.empty()) emptied_.SignalAll();
}

void CallRegistry::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

bool CallRegistry::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

int64_t CallRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(members_.size());
}

bool CallRegistry::AwaitEmpty(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  absl::MutexLock lock(&mutex_);
  while (!members_.empty()) {
    if (emptied_.WaitWithDeadline(&mutex_, until)) return members_.empty();
  }
  return true;
}

void CallRegistry::AwaitQuiet(absl::Duration quiet, absl::Duration limit) {
  const absl::Time start = absl::Now();
  while (true) {
    absl::Time next;
    {
      absl::MutexLock lock(&mutex_);
      next = std::min(std::max(last_refused_, start) + quiet, start + limit);
    }
    const absl::Time now = absl::Now();
    if (next <= now) return;
    absl::SleepFor(next - now);
  }
}

void CallRegistry::Sweep(absl::Duration interval) {
  absl::MutexLock lock(&mutex_);
  absl::Time next = absl::Now() + interval;
  while (!stopping_) {
    if (!stop_.WaitWithDeadline(&mutex_, next)) continue;
    const absl::Time now = absl::Now();
    next = now + interval;
    for (Member* member : members_) member->OnSweep(now);
  }
}

}  // namespace attend::server
