// Who makes a call, told by its headers: before a byte of its message is granted.
#ifndef ATTEND_SERVER_PROCESS_AUTHENTICATE_H_
#define ATTEND_SERVER_PROCESS_AUTHENTICATE_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/statusor.h"
#include "server/process/tokens.h"

namespace attend::server {

// The name that belongs to the bearer token in the metadata "authorization". Empty where tokens is null: no
// call needs one. UNAUTHENTICATED says the same whether the token is missing, malformed, doubled or unknown.
absl::StatusOr<std::string> Authenticate(const grpc::ServerContext& context, const Tokens* tokens);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_AUTHENTICATE_H_
