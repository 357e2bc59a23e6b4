#include "server/process/pollers.h"

#include <algorithm>

namespace attend::server {
namespace {

constexpr int64_t kPatienceTicks = Pollers::kPatience.count();

int64_t Ticks(Pollers::Clock::time_point time) { return time.time_since_epoch().count(); }

}  // namespace

void Pollers::Add(Clock::time_point now) {
  const int64_t calls = calls_.fetch_add(1) + 1;
  const int64_t count = count_.load();
  if (calls < count) return;
  // Not at every call: others read it at every event.
  if (Ticks(now) - full_.load(std::memory_order_relaxed) > kPatienceTicks / 8) {
    full_.store(Ticks(now), std::memory_order_relaxed);
  }
  if (calls == count || count == threads_) return;
  absl::MutexLock lock(&mutex_);
  joins_.Signal();
}

void Pollers::Answered() {
  if (least_ == 0) answered_.fetch_add(1);
  calls_.fetch_sub(1);
}

void Pollers::Ended() {
  if (least_ == 0) answered_.fetch_sub(1);
}

int64_t Pollers::Wanted() const {
  // In this order, which is not that of Answered: a call that turns from one into the other counts as either.
  const int64_t calls = calls_.load();
  const int64_t rest = answered_.load() > 0 ? 1 : least_;
  return stuck_.load(std::memory_order_relaxed) + std::max(calls, rest);
}

void Pollers::Join() {
  absl::MutexLock lock(&mutex_);
  while (!closed_ && count_.load() >= std::max(helped_, Wanted())) joins_.Wait(&mutex_);
  count_.fetch_add(1);
}

Pollers::Clock::duration Pollers::Wait(Clock::time_point now) const {
  const bool patient = Ticks(now) - full_.load(std::memory_order_relaxed) <= kPatienceTicks;
  if (!patient && count() > Wanted()) return kLeave;
  // Who may have to leave must not wait for an event that others take.
  return count() > least_ ? kPatience : kForever;
}

void Pollers::Leave() {
  absl::MutexLock lock(&mutex_);
  helped_ = 0;
  count_.fetch_sub(1);
}

void Pollers::Help(Clock::time_point now) {
  full_.store(Ticks(now), std::memory_order_relaxed);
  if (count() == threads_) return;
  absl::MutexLock lock(&mutex_);
  helped_ = count() + 1;
  joins_.Signal();
}

void Pollers::Look(Clock::time_point now) {
  const auto stuck = [now](const Event& event) {
    return Ticks(now) - event.begun.load(std::memory_order_relaxed) > kPatienceTicks;
  };
  stuck_.store(std::count_if(events_.begin(), events_.end(), stuck), std::memory_order_relaxed);
  if (count() >= Wanted()) return;
  absl::MutexLock lock(&mutex_);
  joins_.Signal();
}

void Pollers::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  joins_.SignalAll();
}

}  // namespace attend::server
