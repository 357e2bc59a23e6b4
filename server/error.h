// Errors inside the server: absl::Status with what a caller needs besides the message, carried as
// payloads, so that layers below the wire know neither gRPC nor protobuf.
#ifndef ATTEND_SERVER_ERROR_H_
#define ATTEND_SERVER_ERROR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attend::server {

// One thing wrong with a request.
struct Violation {
  std::string field;        // proto path, such as "q.shape[2]"
  std::string description;  // what is wrong, and the limit
};

// INVALID_ARGUMENT that lists every violation; the message holds the first few. violations not empty.
absl::Status InvalidRequest(std::vector<Violation> violations);
// RESOURCE_EXHAUSTED that may succeed when tried again after retry_delay. reason is UPPER_SNAKE, such as
// "QUEUE_FULL".
absl::Status Exhausted(absl::string_view reason, absl::string_view message, absl::Duration retry_delay);
// Any other error with a reason.
absl::Status ErrorWithReason(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// What was attached; empty where nothing was.
std::vector<Violation> GetViolations(const absl::Status& status);
std::string GetReason(const absl::Status& status);
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);

}  // namespace attend::server

#endif  // ATTEND_SERVER_ERROR_H_
