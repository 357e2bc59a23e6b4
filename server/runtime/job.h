// A request on its way through the server, from the moment it is admitted.
#ifndef ATTEND_SERVER_RUNTIME_JOB_H_
#define ATTEND_SERVER_RUNTIME_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/call.h"
#include "server/device/device.h"
#include "server/memory/host_pool.h"

namespace attend::server {

// Room for one request, taken before its bytes are read into memory; given back when destroyed. Moves
// with the request: caller, scheduler (with Submit), caller again (in the finished job).
class Admission {
 public:
  virtual ~Admission() = default;
  // Names the request towards Scheduler::Cancel; never used twice.
  virtual uint64_t id() const = 0;
};

// What the reply's report says.
struct JobReport {
  Kernel kernel = Kernel::kFlash;
  std::string device;
  WorkCount work;
  int64_t queue_ns = 0;  // from Submit until its batch was formed
  int64_t copy_in_ns = 0;
  int64_t kernel_ns = 0;
  int64_t copy_out_ns = 0;
  int64_t batch_requests = 0;
};

// Filled by the call (server/process), handed to the scheduler, handed back through done.
struct Job {
  // Counts the blocks below: they go first when the job is destroyed. Set by the scheduler.
  std::unique_ptr<Admission> admission;

  Call call;
  CallTensors tensors;  // point into inputs and outputs
  HostBlock outputs;
  HostBlock inputs;                  // may lie in the outputs' block
  std::unique_ptr<Staging> staging;  // by Scheduler::Stage; the scheduler drops it before done
  absl::Time deadline = absl::InfiniteFuture();
  std::string fair_key;  // token name, else peer address
  std::string request_id;

  JobReport report;
  // Called exactly once, on any thread, possibly before Submit returns, with the job and its status.
  // Does not block; may call the scheduler.
  std::function<void(std::unique_ptr<Job>, absl::Status)> done;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_JOB_H_
