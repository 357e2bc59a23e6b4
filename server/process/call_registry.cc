#include "server/process/call_registry.h"

#include "absl/time/clock.h"

namespace attend::server {

CallRegistry::CallRegistry(int64_t members_max, absl::Duration interval)
    : members_max_(members_max), sweeper_([this, interval] { Sweep(interval); }) {}

CallRegistry::~CallRegistry() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  sweeper_.join();
}

bool CallRegistry::Add(Member* member, Handle* handle) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || static_cast<int64_t>(members_.size()) >= members_max_) return false;
  *handle = members_.insert(members_.end(), member);
  return true;
}

void CallRegistry::Remove(Handle handle) {
  absl::MutexLock lock(&mutex_);
  members_.erase(handle);
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
  const auto empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return members_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&empty), limit);
}

void CallRegistry::Sweep(absl::Duration interval) {
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval)) {
    const absl::Time now = absl::Now();
    for (Member* member : members_) member->OnSweep(now);
  }
}

}  // namespace attend::server
