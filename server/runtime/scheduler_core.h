// The scheduler behind its interface: one lock, one timer thread, and whatever threads call in.
#ifndef ATTEND_SERVER_RUNTIME_SCHEDULER_CORE_H_
#define ATTEND_SERVER_RUNTIME_SCHEDULER_CORE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/runtime/entry.h"
#include "server/runtime/fair_queue.h"
#include "server/runtime/pace.h"
#include "server/runtime/scheduler.h"

namespace attend::server {

// Thread-safe. Shared by the scheduler and the admissions that it has given out.
//
// Whoever makes work possible (Submit, a finished batch, a timer) forms batches and hands them to slots on
// its own thread: there is no dispatcher thread to wake. Jobs are finished, and devices called, without
// the lock.
class SchedulerCore : public std::enable_shared_from_this<SchedulerCore> {
 public:
  SchedulerCore(const SchedulerOptions& options, std::vector<std::unique_ptr<Device>> devices,
                SchedulerObserver* observer);
  ~SchedulerCore();

  void Start();
  // Drops what waits, waits for what runs, closes slots and devices.
  void Stop();

  // Scheduler's methods.
  absl::StatusOr<std::unique_ptr<Admission>> Admit(const Call& call, int64_t host_bytes,
                                                   const Caller& caller);
  std::unique_ptr<Staging> Stage(const Admission& admission, std::span<const std::byte> inputs);
  void Submit(std::unique_ptr<Job> job, std::unique_ptr<Admission> admission);
  void Cancel(uint64_t id);
  bool Drain(absl::Duration limit);
  absl::Status Health() const;
  SchedulerQueue queue() const;
  std::vector<int> BusySlots() const;
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

  // An admission is given back.
  void Release(Entry* entry);

 private:
  struct Slot {
    std::unique_ptr<DeviceSlot> slot;
    bool busy = false;
  };
  struct DeviceState {
    std::vector<Slot> slots;
    int free_slots = 0;
    int long_running = 0;
    int short_running = 0;
    int64_t bytes_used = 0;           // of running batches
    absl::Duration outstanding;       // predicted, of running batches
    absl::Duration outstanding_long;  // of those that are long
    Pace pace;
    absl::Status fault;  // sticky
  };
  struct Batch {
    uint64_t id = 0;
    int device = 0;
    int slot = 0;
    std::vector<Entry*> entries;
    std::vector<BatchItem> items;
    int64_t tokens = 0;
    int64_t device_bytes = 0;
    absl::Duration cost;
    absl::Time started;
    absl::Duration hang_after;
    bool suspected = false;  // half of hang_after has passed
    absl::Time look;         // when the watchdog looks at it
  };
  struct Finished {
    std::unique_ptr<Job> job;
    absl::Status status;
  };
  // What is to be said and done once the lock is released.
  struct Outbox {
    std::vector<Finished> finished;
    std::vector<absl::string_view> dropped;
    std::vector<std::pair<int, absl::Status>> faults;  // device, what
  };
  enum class TimerKind : uint8_t { kDeadline, kReady, kHang };
  using Timer = std::tuple<absl::Time, TimerKind, uint64_t>;  // id of an entry, or a batch

  // scheduler_core.cc
  absl::Status Measure(const Call& call, int64_t host_bytes, Entry* entry) const;
  absl::Status MayEnter(const Entry& entry, const Caller& caller) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // About how long until work that has so much queued work ahead of it starts. Long work leaves slots and
  // turns to short work, which waits for short work alone.
  absl::Duration PredictWait(absl::Duration ahead, bool long_request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reject(absl::Status status);
  absl::Duration RetryDelay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(Entry* entry, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts an entry no more as staged; the device that it was staged on, or -1.
  int Unstage(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveQueue(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Entry* entry, absl::Status status, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWaiting(const absl::Status& status, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(Outbox* outbox) ABSL_LOCKS_EXCLUDED(mutex_);

  // scheduler_run.cc
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // releases the lock now and then
  Batch* FormBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Batch* StartBatch(int device, std::vector<Entry*> entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnBatchDone(Batch* batch, BatchResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishBatch(const Batch& batch, BatchResult& result, Outbox* outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkFault(int device, const absl::Status& fault, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // scheduler_timers.cc
  void RunTimers();
  void Fire(const Timer& timer, absl::Time now, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FireHang(Batch* batch, absl::Time now, Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the timer thread if it sleeps for too long.
  void WakeTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SchedulerOptions options_;
  Clock* const clock_;
  SchedulerObserver* const observer_;  // never null
  std::vector<std::unique_ptr<Device>> devices_;

  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;     // admitted or waiting
  int64_t host_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all entries
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<DeviceState> states_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> staged_
      ABSL_GUARDED_BY(mutex_);                          // predicted, staged and not running, by device
  uint64_t sound_devices_ ABSL_GUARDED_BY(mutex_) = 0;  // bits
  absl::flat_hash_map<uint64_t, std::unique_ptr<Batch>> batches_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;  // admits nothing
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;    // queues nothing either
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar changed_;  // entries_ or batches_ became empty

  std::set<Timer> timers_ ABSL_GUARDED_BY(mutex_);
  absl::Time timers_wake_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when the thread looks again
  bool timers_stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar timers_changed_;
  std::thread timers_thread_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_SCHEDULER_CORE_H_
