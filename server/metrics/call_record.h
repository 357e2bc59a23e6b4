// What is known of a call when it ends: what metrics observe and the log line says. Shapes and times,
// never tensor contents.
#ifndef ATTEND_SERVER_METRICS_CALL_RECORD_H_
#define ATTEND_SERVER_METRICS_CALL_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/call.h"

namespace attend::server {

struct CallShape {
  DataType dtype = DataType::kFp32;
  Layout layout = Layout::kBhld;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 0, v_head_dim = 0;
};

struct CallRecord {
  std::string request_id;
  std::string traceparent;  // empty: none
  std::string peer;
  std::string caller;  // the name that belongs to its token; empty: none is needed
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;             // of an error
  std::string reason;              // of an error, UPPER_SNAKE; empty: none
  std::optional<CallShape> shape;  // once the request has been read
  std::optional<Kernel> kernel;    // once it is known, never kAuto
  std::string device;
  int64_t request_bytes = 0;
  int64_t response_bytes = 0;
  int64_t batch_requests = 0;
  // Stages in nanoseconds; ran says whether queue to copy_out happened.
  bool ran = false;
  int64_t receive_ns = 0, queue_ns = 0, copy_in_ns = 0, kernel_ns = 0, copy_out_ns = 0, reply_ns = 0;
  int64_t total_ns = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_CALL_RECORD_H_
