// A clock that stands still until a test turns it.
#ifndef ATTEND_TESTS_SERVER_RUNTIME_FAKE_CLOCK_H_
#define ATTEND_TESTS_SERVER_RUNTIME_FAKE_CLOCK_H_

#include <list>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/runtime/clock.h"

namespace attend::server {

class FakeClock : public Clock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  void WaitUntil(absl::CondVar* cv, absl::Mutex* mutex, absl::Time time) override {
    std::list<Waiter>::iterator self;
    {
      absl::MutexLock lock(&mutex_);
      if (time <= now_) return;
      self = waiters_.insert(waiters_.end(), {cv, mutex});
    }
    cv->Wait(mutex);
    absl::MutexLock lock(&mutex_);
    waiters_.erase(self);
  }

  // Not while a waiter's object is being destroyed.
  void Advance(absl::Duration by) {
    std::vector<Waiter> waiters;
    {
      absl::MutexLock lock(&mutex_);
      now_ += by;
      waiters.assign(waiters_.begin(), waiters_.end());
    }
    for (const auto& [cv, mutex] : waiters) {
      absl::MutexLock lock(mutex);
      cv->SignalAll();
    }
  }

 private:
  using Waiter = std::pair<absl::CondVar*, absl::Mutex*>;

  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_RUNTIME_FAKE_CLOCK_H_
