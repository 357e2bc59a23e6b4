// Making the statuses that attend/status.h reads.
#ifndef ATTEND_CLIENT_CPP_STATUS_INTERNAL_H_
#define ATTEND_CLIENT_CPP_STATUS_INTERNAL_H_

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "attend/status.h"

namespace attend {
inline namespace client {

// The same code and message; every detail of the google.rpc.Status becomes a payload under its type URL.
absl::Status FromGrpcStatus(const grpc::Status& status);
// INVALID_ARGUMENT as the server would say it, for what is refused before sending.
absl::Status InvalidRequest(const std::vector<Violation>& violations);
void SetRequestId(absl::Status& status, absl::string_view request_id);
void SetRetryDelay(absl::Status& status, absl::Duration delay);

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_CPP_STATUS_INTERNAL_H_
