// One line per call, sampled under load.
#ifndef ATTEND_SERVER_PROCESS_CALL_LOG_H_
#define ATTEND_SERVER_PROCESS_CALL_LOG_H_

#include <cstdint>

#include "absl/time/time.h"
#include "server/metrics/metrics.h"
#include "server/process/log.h"

namespace attend::server {

// Thread-safe.
class CallLog {
 public:
  // Calls that went well and calls that did not have a limit of lines_per_second each, so that neither
  // hides the other. What is left out is counted in metrics.
  CallLog(int64_t lines_per_second, Metrics* metrics)
      : good_(lines_per_second), bad_(lines_per_second), metrics_(metrics) {}

  void Write(const CallRecord& record, absl::Time now);

 private:
  RateLimit good_;
  RateLimit bad_;
  Metrics* const metrics_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_CALL_LOG_H_
