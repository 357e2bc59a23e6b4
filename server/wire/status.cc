// ToGrpcStatus: errors as gRPC callers expect them, within what fits the trailers of a call.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/any.pb.h"
#include "google/protobuf/duration.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/error.h"
#include "server/wire/encoder.h"

namespace attend::server {
namespace {

// Peers refuse trailers above 8 KiB. The details travel base64-coded (4 bytes for 3) beside the message,
// which they hold once more: 4/3 * (1000 + 3600 + small) + 1000 stays below.
constexpr size_t kMessageBytesMax = 1000;
constexpr size_t kViolationsBytesMax = 3600;
constexpr size_t kViolationOverheadBytes = 8;  // tags and sizes
constexpr size_t kFieldBytesMax = 128;
constexpr size_t kDescriptionBytesMax = 512;
constexpr size_t kReasonBytesMax = 63;  // as google.rpc.ErrorInfo says

// At most bytes_max bytes of printable ASCII, which no header or string field has to escape.
std::string Printable(absl::string_view text, size_t bytes_max) {
  constexpr absl::string_view kCut = "...";
  const bool cut = text.size() > bytes_max;
  std::string out(text.substr(0, cut ? bytes_max - kCut.size() : text.size()));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  if (cut) out.append(kCut.data(), kCut.size());
  return out;
}

google::rpc::BadRequest ToBadRequest(const std::vector<Violation>& violations) {
  google::rpc::BadRequest bad;
  size_t bytes = 0;
  for (size_t i = 0; i < violations.size(); ++i) {
    std::string field = Printable(violations[i].field, kFieldBytesMax);
    std::string description = Printable(violations[i].description, kDescriptionBytesMax);
    bytes += field.size() + description.size() + kViolationOverheadBytes;
    auto* entry = bad.add_field_violations();
    if (bytes > kViolationsBytesMax) {
      entry->set_description("and " + std::to_string(violations.size() - i) + " more violations");
      break;
    }
    entry->set_field(std::move(field));
    entry->set_description(std::move(description));
  }
  return bad;
}

// google.rpc.ErrorInfo{reason, domain}, written by hand: the error_details.proto of the distributions is
// older than this message. Both strings are shorter than 128 bytes, so a size is one byte.
google::protobuf::Any ErrorInfo(const std::string& reason, const std::string& domain) {
  constexpr char kReasonTag = 1 << 3 | 2;
  constexpr char kDomainTag = 2 << 3 | 2;
  google::protobuf::Any any;
  any.set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  std::string* value = any.mutable_value();
  value->append({kReasonTag, static_cast<char>(reason.size())}).append(reason);
  value->append({kDomainTag, static_cast<char>(domain.size())}).append(domain);
  return any;
}

// INVALID_ARGUMENT and the like: the code's own name, where nothing more exact was attached.
std::string ReasonOf(const absl::Status& status) {
  const std::string reason = GetReason(status);
  return Printable(reason.empty() ? absl::StatusCodeToString(status.code()) : reason, kReasonBytesMax);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(Printable(status.message(), kMessageBytesMax));

  *details.add_details() = ErrorInfo(ReasonOf(status), "attend");
  if (const std::vector<Violation> violations = GetViolations(status); !violations.empty()) {
    details.add_details()->PackFrom(ToBadRequest(violations));
  }
  if (const auto delay = GetRetryDelay(status)) {
    google::rpc::RetryInfo retry;
    const absl::Duration bounded = std::clamp(*delay, absl::ZeroDuration(), absl::Hours(24));
    absl::Duration rest;
    retry.mutable_retry_delay()->set_seconds(absl::IDivDuration(bounded, absl::Seconds(1), &rest));
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
    details.add_details()->PackFrom(retry);
  }
  return {static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString()};
}

}  // namespace attend::server
