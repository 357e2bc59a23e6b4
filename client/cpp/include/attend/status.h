// Errors of calls: absl::Status, with what the server said besides the message.
//
//   absl::StatusOr<attend::Response> response = client->Attend(request);
//   if (!response.ok()) {
//     for (const attend::Violation& v : attend::GetViolations(response.status())) {
//       std::cerr << v.field << ": " << v.description << "\n";   // q.shape[2]: ...
//     }
//   }
#ifndef ATTEND_STATUS_H_
#define ATTEND_STATUS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attend {
inline namespace client {

// One thing wrong with a request.
struct Violation {
  std::string field;        // path in attend.v1.AttendRequest, such as "q.shape[2]"
  std::string description;  // what is wrong, and the limit
};

// All that is wrong with a request, where the code is kInvalidArgument; else empty.
std::vector<Violation> GetViolations(const absl::Status& status);
// The machine-readable reason, such as "QUEUE_FULL"; empty where there is none.
std::string GetReason(const absl::Status& status);
// How long to wait before another try, where the server said so.
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);
// The id under which the server logged the call; empty where the call was never sent.
std::string GetRequestId(const absl::Status& status);
// Code, message, violations one a line, reason and request id, for people.
std::string Describe(const absl::Status& status);

}  // namespace client
}  // namespace attend

#endif  // ATTEND_STATUS_H_
