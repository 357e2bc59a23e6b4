// Admission, queue, batching and execution: jobs in, finished jobs out.
#ifndef ATTEND_SERVER_RUNTIME_SCHEDULER_H_
#define ATTEND_SERVER_RUNTIME_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/runtime/job.h"

namespace attend::server {

struct SchedulerOptions {
  int64_t queue_requests_max = 4096;           // waiting, not running
  int64_t queue_bytes_max = int64_t{8} << 30;  // host bytes of waiting and running jobs
  int64_t batch_requests_max = 64;
  int64_t batch_tokens_max = int64_t{1} << 20;            // sum of batch * q_len in one launch
  absl::Duration max_queue_delay = absl::ZeroDuration();  // waits on purpose for company; 0: never
};

// What happens, for metrics; implementations are thread-safe and quick.
class SchedulerObserver {
 public:
  virtual ~SchedulerObserver() = default;
  virtual void OnQueue(int64_t requests, int64_t bytes) = 0;  // after each change
  virtual void OnRejected(absl::string_view reason) = 0;      // at Admit
  virtual void OnDropped(absl::string_view reason) = 0;       // "cancelled", "deadline"
  virtual void OnBatch(const DeviceInfo& device, const Launch& launch, int64_t requests, int64_t tokens,
                       const BatchResult& result) = 0;
};

// Room for one request, taken before its bytes are read into memory; given back when destroyed.
class Admission {
 public:
  virtual ~Admission() = default;
};

// Thread-safe. Destroyed after Drain.
class Scheduler {
 public:
  static std::unique_ptr<Scheduler> Create(const SchedulerOptions& options,
                                           std::vector<std::unique_ptr<Device>> devices,
                                           SchedulerObserver* observer);
  virtual ~Scheduler() = default;

  // Whether a call may enter now, by its cost; exact under concurrency. InvalidArgument where it can
  // never run, RESOURCE_EXHAUSTED (QUEUE_FULL, ...) where it could later, UNAVAILABLE (DRAINING) in a
  // drain. host_bytes: inputs and outputs.
  virtual absl::StatusOr<std::unique_ptr<Admission>> Admit(const Call& call, int64_t host_bytes) = 0;

  // Queues an admitted job; job->done gets it back. A job cancelled or past its deadline before it is
  // batched comes back CANCELLED or DEADLINE_EXCEEDED, when that happens.
  virtual void Submit(std::unique_ptr<Job> job, std::unique_ptr<Admission> admission) = 0;
  // Tells that a job's cancelled flag was set.
  virtual void OnCancelled() = 0;

  // Refuses new work, waits until all admitted work is answered or the time is up; false if it was.
  virtual bool Drain(absl::Duration limit) = 0;

  virtual const std::vector<std::unique_ptr<Device>>& devices() const = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_SCHEDULER_H_
