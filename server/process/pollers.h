// How many threads ask a completion queue for events: as many as there are calls, and more where these have
// no rest.
//
// gRPC lets one thread poll for all, and wakes another to go on with it whenever events have come. Where a
// single call is on its way, each of its events would so run on another thread, most of them on another CPU
// with cold caches: one thread alone answers it in half the time. Under load all threads find something to
// do.
#ifndef ATTEND_SERVER_PROCESS_POLLERS_H_
#define ATTEND_SERVER_PROCESS_POLLERS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attend::server {

// Of one queue. Thread-safe.
class Pollers {
 public:
  using Clock = std::chrono::steady_clock;

  // Threads leave so long after the last call came for which all that poll were wanted: loads come and go.
  // One that sees to a single event for longer is stuck, and replaced.
  static constexpr Clock::duration kPatience = std::chrono::milliseconds(100);
  // Who has had no rest for so long wants help. Calls alone do not tell: they are counted once somebody has
  // looked, and none looks while all are busy.
  static constexpr Clock::duration kNoRest = std::chrono::milliseconds(1);
  // What passes for a rest: longer than to fetch an event that is there already.
  static constexpr Clock::duration kRest = std::chrono::microseconds(20);
  // Answers of Wait.
  static constexpr Clock::duration kLeave = Clock::duration::zero();
  static constexpr Clock::duration kForever = Clock::duration::max();

  // least: so many poll where there is no call, 0 or 1. threads: so many call Join.
  Pollers(int64_t least, int64_t threads)
      : least_(least), threads_(threads), events_(static_cast<size_t>(threads)) {}

  // A call has come; it is answered; it has ended. One thread can see to the rest of all calls that are
  // answered.
  void Add(Clock::time_point now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answered();
  void Ended();

  // Blocks until one more thread is wanted, or Close.
  void Join() ABSL_LOCKS_EXCLUDED(mutex_);
  // How long a thread that polls waits for an event before it asks again. kLeave: it is one too many, takes
  // what is there already, and leaves.
  Clock::duration Wait(Clock::time_point now) const;
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

  // Around what a thread that polls, one of [0, threads), does with an event.
  void Begin(size_t thread, Clock::time_point now) {
    events_[thread].begun.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void End(size_t thread) { events_[thread].begun.store(kNone, std::memory_order_relaxed); }
  // A thread that polls has had no rest: another joins.
  void Help(Clock::time_point now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Called now and then: looks for threads that are stuck.
  void Look(Clock::time_point now) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on everybody may join.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads that have joined, stuck ones included.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  int64_t threads() const { return threads_; }

 private:
  static constexpr int64_t kNone = INT64_MAX;
  // Of one thread; a cache line of its own, as others write theirs at every event.
  struct alignas(64) Event {
    std::atomic<int64_t> begun{kNone};
  };

  // Threads that are wanted for calls.
  int64_t Wanted() const;

  const int64_t least_, threads_;
  std::vector<Event> events_;
  // Add counts a call and then looks at the threads. A thread that leaves is counted off and then, in Join,
  // looks at the calls. So no call comes unseen while a thread goes to sleep, as long as these are
  // sequentially consistent. Answered and Wanted see to it that none goes unseen either.
  alignas(64) std::atomic<int64_t> calls_{0};  // not answered
  std::atomic<int64_t> answered_{0};           // and not ended; where least is 0
  alignas(64) std::atomic<int64_t> count_{0};  // changes by mutex_
  std::atomic<int64_t> full_{0};               // when about all that poll were last wanted
  std::atomic<int64_t> stuck_{0};              // threads, as Look last saw
  absl::Mutex mutex_;
  absl::CondVar joins_;
  int64_t helped_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are wanted, whatever the calls
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_POLLERS_H_
