// Admission, queue, batching and execution: jobs in, finished jobs out. README.md tells the whole.
#ifndef ATTEND_SERVER_RUNTIME_SCHEDULER_H_
#define ATTEND_SERVER_RUNTIME_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/runtime/clock.h"
#include "server/runtime/job.h"

namespace attend::server {

struct SchedulerOptions {
  int64_t queue_requests_max = 4096;           // admitted and not running
  int64_t queue_bytes_max = int64_t{8} << 30;  // host bytes of all admitted requests, running ones too
  // Most of one launch. A request that exceeds one of the last three by itself runs alone.
  int64_t batch_requests_max = 64;
  int64_t batch_tokens_max = int64_t{1} << 20;  // sum of batch * q_len
  int64_t batch_bytes_max = int64_t{64} << 20;  // host bytes: larger batches would not overlap copies
  absl::Duration batch_time_max = absl::Milliseconds(50);  // predicted
  absl::Duration max_queue_delay = absl::ZeroDuration();   // waits on purpose for company; 0: never
  // Share of the time to its deadline that a request may be predicted to wait; 0: any. What would wait
  // longer is refused at once, so that what is admitted is answered in time. Half leaves room for
  // predictions that are wrong by as much.
  double queue_wait_share_max = 0.5;
  // A request that is predicted to run longer leaves a device's last free slot to shorter ones.
  absl::Duration long_request_time = absl::Milliseconds(100);
  // One that is predicted to run less is short: it takes one of a device's short slots, where it has such
  // (what more launches at once would gain the GPU they would cost the CPU), and its kernels go first.
  absl::Duration short_request_time = absl::Microseconds(200);
  // A batch that runs longer than max(floor, factor * predicted) is taken for a hung device.
  double hang_factor = 20;
  absl::Duration hang_floor = absl::Seconds(30);
  Clock* clock = Clock::Real();  // outlives the scheduler
};

// Why Admit refuses, as OnRejected says it; in errors the same in upper case.
inline constexpr absl::string_view kRejectReasons[] = {
    "unsupported",        // INVALID_ARGUMENT: no device can run the call
    "request_too_large",  // INVALID_ARGUMENT: exceeds a bound by itself
    "queue_full",         // RESOURCE_EXHAUSTED: queue_requests_max
    "queue_bytes_full",   // RESOURCE_EXHAUSTED: queue_bytes_max
    "overloaded",         // RESOURCE_EXHAUSTED: queue_wait_share_max
    "draining",           // UNAVAILABLE
    "device_failed",      // UNAVAILABLE
};
// Why a waiting job is dropped, as OnDropped says it.
inline constexpr absl::string_view kDropReasons[] = {"cancelled", "deadline"};

// Who asks to be admitted.
struct Caller {
  std::string fair_key;  // token name, else peer address
  absl::Time deadline = absl::InfiniteFuture();
};

// What keeps a batch from taking more of what waits, as OnBatchLimited says it: batch-requests-max,
// batch-tokens-max, batch-bytes-max, the device's free memory, and batch-time-max or the share of one of
// several idle devices.
inline constexpr absl::string_view kBatchLimits[] = {"requests", "tokens", "bytes", "device_memory", "time"};

// What happens, for metrics and health. Implementations are thread-safe and quick, and do not call the
// scheduler.
class SchedulerObserver {
 public:
  virtual ~SchedulerObserver() = default;
  virtual void OnRejected(absl::string_view reason) = 0;     // one of kRejectReasons
  virtual void OnDropped(absl::string_view reason) = 0;      // one of kDropReasons, before or while it ran
  virtual void OnBatchLimited(absl::string_view limit) = 0;  // one of kBatchLimits; the lock is held
  // A batch has run. launch has no problems: it says kernel, dtype and head_dims.
  virtual void OnBatch(const DeviceInfo& device, const Launch& launch, int64_t requests, int64_t tokens,
                       const BatchResult& result) = 0;
  // Once per device: it has a sticky fault, or hangs, and gets no more work. The process turns
  // NOT_SERVING, drains, and exits non-zero.
  virtual void OnDeviceFault(const DeviceInfo& device, const absl::Status& fault) = 0;
};

struct SchedulerQueue {
  int64_t requests = 0;    // admitted and not running
  int64_t host_bytes = 0;  // of all that are admitted
};

// Thread-safe.
class Scheduler {
 public:
  // devices: one or more. observer may be null; it outlives the scheduler.
  static std::unique_ptr<Scheduler> Create(const SchedulerOptions& options,
                                           std::vector<std::unique_ptr<Device>> devices,
                                           SchedulerObserver* observer);
  // After Drain; waits for batches that still run. Admissions may outlive it.
  virtual ~Scheduler() = default;

  // Whether a call may enter now, by its cost; exact under concurrency. InvalidArgument where it can
  // never run, with the limit; RESOURCE_EXHAUSTED with a retry delay where it could later; UNAVAILABLE
  // (DRAINING, DEVICE_FAILED). host_bytes: inputs and outputs.
  virtual absl::StatusOr<std::unique_ptr<Admission>> Admit(const Call& call, int64_t host_bytes,
                                                           const Caller& caller) = 0;

  // Room on the device that would run an admitted request now, for tensors that lie in these bytes
  // (device.h); null where there is none, or the request would have to wait anyway. For job->staging of this
  // admission's job. Where the request really runs is decided as ever: on another device it is copied again.
  virtual std::unique_ptr<Staging> Stage(const Admission& admission, std::span<const std::byte> inputs) = 0;

  // Queues an admitted job; job->done gets it back, with its admission in it. job->call is what was
  // admitted. A job that is cancelled or whose deadline passes before it is batched comes back CANCELLED
  // or DEADLINE_EXCEEDED when that happens; one that runs already comes back so when it has run.
  // UNAVAILABLE where the devices that could run it have failed.
  virtual void Submit(std::unique_ptr<Job> job, std::unique_ptr<Admission> admission) = 0;
  // The caller of this request is gone. May be called at any time, before Submit and after done as well.
  virtual void Cancel(uint64_t admission_id) = 0;

  // Refuses new work and waits until every admission is given back, or the time is up; what still waits
  // then comes back UNAVAILABLE, and the answer is false.
  virtual bool Drain(absl::Duration limit) = 0;

  // OK while every device is sound; else the first fault.
  virtual absl::Status Health() const = 0;
  // As it is now.
  virtual SchedulerQueue queue() const = 0;
  // Batches in flight now, by device.
  virtual std::vector<int> BusySlots() const = 0;

  virtual const std::vector<std::unique_ptr<Device>>& devices() const = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_SCHEDULER_H_
