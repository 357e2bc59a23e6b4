// Callers that hand requests straight to the scheduler, from memory of the server's own pool: the server
// without the wire.
#ifndef ATTEND_TESTS_BENCH_SERVICE_RUNTIME_LOAD_H_
#define ATTEND_TESTS_BENCH_SERVICE_RUNTIME_LOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/call.h"
#include "server/process/devices.h"
#include "server/process/options.h"
#include "server/runtime/scheduler.h"

namespace attend::bench {

// Means are over the calls counted.
struct RuntimeResult {
  int64_t calls = 0;
  double seconds = 0;           // from the start to the last of these calls
  std::vector<double> latency;  // seconds, sorted
  double queue_s = 0, copy_in_s = 0, kernel_s = 0, copy_out_s = 0, batch_requests = 0;
  double calls_per_second() const { return calls == 0 ? 0 : static_cast<double>(calls) / seconds; }
};

// A scheduler with its devices and pool, as a server with these options has them, and callers of one call
// each.
class Runtime {
 public:
  ~Runtime();
  // The callers' q, k and v are the same random fp16 numbers.
  static absl::StatusOr<std::unique_ptr<Runtime>> Open(server::ServerOptions options, const Call& call,
                                                       int callers);
  // Each caller sends its call, waits for the answer, and sends it again, for so long. An error where a call
  // fails, or where two callers have different answers.
  absl::StatusOr<RuntimeResult> Run(double seconds);
  const std::string& devices() const { return devices_.choice; }

 private:
  struct Caller {
    server::HostBlock inputs, outputs;
    absl::Status status;
    RuntimeResult result;
  };
  void Drive(double seconds, Caller* caller);
  absl::Status CheckAnswers() const;

  Call call_;
  server::Devices devices_;  // the pool outlives scheduler and blocks
  std::unique_ptr<server::Scheduler> scheduler_;
  std::vector<Caller> callers_;
};

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_SERVICE_RUNTIME_LOAD_H_
