#include "server/process/byte_budget.h"

namespace attend::server {

bool ByteBudget::Acquire(int64_t bytes, Waiter* waiter) {
  absl::MutexLock lock(&mutex_);
  if (line_.empty() && used_ + bytes <= capacity_) {
    used_ += bytes;
    return true;
  }
  line_.push_back({bytes, waiter});
  return false;
}

bool ByteBudget::Remove(Waiter* waiter) {
  bool found = false;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = line_.begin(); it != line_.end(); ++it) {
      if (it->waiter != waiter) continue;
      line_.erase(it);
      found = true;
      break;
    }
  }
  // The one that left may have been the large one that held up the rest.
  if (found) Release(0);
  return found;
}

void ByteBudget::Release(int64_t bytes) {
  std::list<Entry> granted;
  {
    absl::MutexLock lock(&mutex_);
    used_ -= bytes;
    while (!line_.empty() && used_ + line_.front().bytes <= capacity_) {
      used_ += line_.front().bytes;
      granted.splice(granted.end(), line_, line_.begin());
    }
  }
  for (const Entry& entry : granted) entry.waiter->OnGranted();
}

int64_t ByteBudget::used() const {
  absl::MutexLock lock(&mutex_);
  return used_;
}

int64_t ByteBudget::waiting() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(line_.size());
}

}  // namespace attend::server
