#include "server/error.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attend::server {
namespace {

constexpr absl::string_view kReasonUrl = "attend/reason";
constexpr absl::string_view kRetryUrl = "attend/retry_delay_ns";
constexpr absl::string_view kViolationsUrl = "attend/violations";
constexpr size_t kViolationsInMessage = 3;

// Violations as field NUL description NUL ...: neither holds a NUL.
absl::Cord Serialize(const std::vector<Violation>& violations) {
  absl::Cord cord;
  for (const Violation& v : violations) {
    cord.Append(absl::StrCat(v.field, absl::string_view("\0", 1), v.description, absl::string_view("\0", 1)));
  }
  return cord;
}

}  // namespace

absl::Status InvalidRequest(std::vector<Violation> violations) {
  std::string message;
  for (size_t i = 0; i < std::min(violations.size(), kViolationsInMessage); ++i) {
    absl::StrAppend(&message, i == 0 ? "" : "; ", violations[i].field,
                    violations[i].field.empty() ? "" : ": ", violations[i].description);
  }
  if (violations.size() > kViolationsInMessage) {
    absl::StrAppend(&message, "; and ", violations.size() - kViolationsInMessage, " more");
  }
  absl::Status status = ErrorWithReason(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST", message);
  status.SetPayload(kViolationsUrl, Serialize(violations));
  return status;
}

absl::Status Exhausted(absl::string_view reason, absl::string_view message, absl::Duration retry_delay) {
  absl::Status status = ErrorWithReason(absl::StatusCode::kResourceExhausted, reason, message);
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(retry_delay))));
  return status;
}

absl::Status ErrorWithReason(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

std::vector<Violation> GetViolations(const absl::Status& status) {
  std::vector<Violation> violations;
  const auto payload = status.GetPayload(kViolationsUrl);
  if (!payload) return violations;
  const std::string text(*payload);
  const std::vector<std::string> parts = absl::StrSplit(text, '\0');
  for (size_t i = 0; i + 1 < parts.size(); i += 2) violations.push_back({parts[i], parts[i + 1]});
  return violations;
}

std::string GetReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  return payload ? std::string(*payload) : "";
}

std::optional<absl::Duration> GetRetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t ns = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &ns)) return std::nullopt;
  return absl::Nanoseconds(ns);
}

}  // namespace attend::server
