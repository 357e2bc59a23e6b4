#include "server/process/authenticate.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/error.h"

namespace attend::server {
namespace {

constexpr char kAuthorizationKey[] = "authorization";
constexpr absl::string_view kScheme = "Bearer ";

}  // namespace

absl::StatusOr<std::string> Authenticate(const grpc::ServerContext& context, const Tokens* tokens) {
  if (tokens == nullptr) return "";
  const auto [first, end] = context.client_metadata().equal_range(kAuthorizationKey);
  if (first != end && std::next(first) == end) {
    const absl::string_view value(first->second.data(), first->second.size());
    if (absl::StartsWithIgnoreCase(value, kScheme)) {
      std::optional<std::string> name = tokens->Find(value.substr(kScheme.size()));
      if (name) return *std::move(name);
    }
  }
  return ErrorWithReason(absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED",
                         "a valid bearer token is needed in the metadata authorization");
}

}  // namespace attend::server
