#include "attend/status.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/status_internal.h"

namespace attend {
inline namespace client {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr absl::string_view kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";
constexpr absl::string_view kErrorInfoUrl = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr absl::string_view kRetryInfoUrl = "type.googleapis.com/google.rpc.RetryInfo";
constexpr absl::string_view kRequestIdUrl = "attend/request_id";

template <typename Message>
std::optional<Message> Payload(const absl::Status& status, absl::string_view url) {
  const auto payload = status.GetPayload(url);
  Message message;
  if (!payload || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  // absl's codes are gRPC's.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

absl::Status InvalidRequest(const std::vector<Violation>& violations) {
  std::string message;
  google::rpc::BadRequest bad_request;
  for (const Violation& v : violations) {
    absl::StrAppend(&message, message.empty() ? "" : "; ", v.field, ": ", v.description);
    auto* violation = bad_request.add_field_violations();
    violation->set_field(v.field);
    violation->set_description(v.description);
  }
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kBadRequestUrl, absl::Cord(bad_request.SerializeAsString()));
  return status;
}

void SetRequestId(absl::Status& status, absl::string_view request_id) {
  status.SetPayload(kRequestIdUrl, absl::Cord(request_id));
}

void SetRetryDelay(absl::Status& status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t ns = absl::ToInt64Nanoseconds(delay);
  info.mutable_retry_delay()->set_seconds(ns / 1000000000);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ns % 1000000000));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
}

std::vector<Violation> GetViolations(const absl::Status& status) {
  std::vector<Violation> violations;
  if (const auto bad_request = Payload<google::rpc::BadRequest>(status, kBadRequestUrl)) {
    for (const auto& v : bad_request->field_violations()) violations.push_back({v.field(), v.description()});
  }
  return violations;
}

std::string GetReason(const absl::Status& status) {
  // ErrorInfo { string reason = 1; ... } by hand: distributions ship an error_details.proto without it.
  const auto payload = status.GetPayload(kErrorInfoUrl);
  if (!payload) return "";
  const std::string bytes(*payload);
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  std::string reason;
  constexpr uint32_t kReasonTag = WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  while (const uint32_t tag = stream.ReadTag()) {
    const bool ok = tag == kReasonTag ? WireFormatLite::ReadString(&stream, &reason)
                                      : WireFormatLite::SkipField(&stream, tag);
    if (!ok) return "";
  }
  return reason;
}

std::optional<absl::Duration> GetRetryDelay(const absl::Status& status) {
  const auto info = Payload<google::rpc::RetryInfo>(status, kRetryInfoUrl);
  if (!info || !info->has_retry_delay()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) + absl::Nanoseconds(info->retry_delay().nanos());
}

std::string GetRequestId(const absl::Status& status) {
  const auto payload = status.GetPayload(kRequestIdUrl);
  return payload ? std::string(*payload) : "";
}

std::string Describe(const absl::Status& status) {
  if (status.ok()) return "OK";
  std::string text = absl::StatusCodeToString(status.code());
  const std::vector<Violation> violations = GetViolations(status);
  if (violations.empty()) {
    absl::StrAppend(&text, ": ", status.message());
  } else {
    // The message repeats the first few of these.
    absl::StrAppend(&text, ": the request cannot be run as it is");
    for (const Violation& v : violations) absl::StrAppend(&text, "\n  ", v.field, ": ", v.description);
  }
  // What gRPC says of a server that takes a connection and closes it before HTTP/2 has begun.
  if (absl::IsUnavailable(status) &&
      absl::StrContains(status.message(), "connections to all backends failing") &&
      absl::StrContains(status.message(), "Socket closed")) {
    absl::StrAppend(&text,
                    "\n  hint: the server closes the connection at once; does it ask for TLS, or for a "
                    "client certificate?");
  }
  const std::string reason = GetReason(status);
  if (!reason.empty()) absl::StrAppend(&text, "\n  reason: ", reason);
  if (const auto delay = GetRetryDelay(status)) {
    absl::StrAppend(&text, "\n  try again in: ", absl::FormatDuration(*delay));
  }
  const std::string request_id = GetRequestId(status);
  if (!request_id.empty()) absl::StrAppend(&text, "\n  request id: ", request_id);
  return text;
}

}  // namespace client
}  // namespace attend
