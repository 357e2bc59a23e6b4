// Errors as a gRPC caller gets them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/error.h"
#include "server/wire/encoder.h"

namespace attend::server {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

// google.rpc.ErrorInfo by its published field numbers: reason 1, domain 2.
std::string ErrorInfo(absl::string_view reason) {
  return absl::StrCat("\x0a", std::string(1, static_cast<char>(reason.size())), reason, "\x12\x06", "attend");
}

// What the trailers hold: the message, and the details in base64.
size_t WireBytes(const grpc::Status& status) {
  return status.error_message().size() + (status.error_details().size() + 2) / 3 * 4;
}

TEST(Status, OkStaysOk) { EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok()); }

TEST(Status, AViolationOfTheWholeRequestNamesNoField) {
  EXPECT_EQ(ToGrpcStatus(InvalidRequest({{"", "too long"}, {"q", "is required"}})).error_message(),
            "too long; q: is required");
}

TEST(Status, ViolationsBecomeABadRequest) {
  const grpc::Status status = ToGrpcStatus(InvalidRequest({{"q.shape[2]", "is -1"}, {"scale", "is nan"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "q.shape[2]: is -1; scale: is nan");
  const google::rpc::Status details = Details(status);
  ASSERT_EQ(details.details_size(), 2);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_EQ(details.details(0).value(), ErrorInfo("INVALID_REQUEST"));
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad));
  ASSERT_EQ(bad.field_violations_size(), 2);
  EXPECT_EQ(bad.field_violations(0).field(), "q.shape[2]");
  EXPECT_EQ(bad.field_violations(0).description(), "is -1");
  EXPECT_EQ(bad.field_violations(1).field(), "scale");
}

TEST(Status, ExhaustionSaysWhenToComeBack) {
  const grpc::Status status =
      ToGrpcStatus(Exhausted("QUEUE_FULL", "queue is full", absl::Milliseconds(1250)));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const google::rpc::Status details = Details(status);
  ASSERT_EQ(details.details_size(), 2);
  EXPECT_EQ(details.details(0).value(), ErrorInfo("QUEUE_FULL"));
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250000000);
}

TEST(Status, EveryCodeKeepsItsNumberAndHasAReason) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "what"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(Details(status).details(0).value(),
              ErrorInfo(absl::StatusCodeToString(static_cast<absl::StatusCode>(code))));
  }
}

TEST(Status, StaysUnder8KBWhateverIsInIt) {
  std::vector<Violation> violations(1000, {std::string(3000, 'f'), std::string(100000, '\xff')});
  absl::Status status = InvalidRequest(violations);
  const grpc::Status many = ToGrpcStatus(status);
  EXPECT_LT(WireBytes(many), 8000u);
  google::rpc::BadRequest bad;
  ASSERT_TRUE(Details(many).details(1).UnpackTo(&bad));
  const int kept = bad.field_violations_size() - 1;
  EXPECT_GT(kept, 3);
  EXPECT_EQ(bad.field_violations(kept).description(), absl::StrCat("and ", 1000 - kept, " more violations"));
  EXPECT_LT(WireBytes(ToGrpcStatus(absl::InternalError(std::string(1 << 20, '\n')))), 8000u);
  EXPECT_LT(WireBytes(ToGrpcStatus(
                Exhausted(std::string(5000, 'R'), std::string(1 << 20, 'x'), absl::InfiniteDuration()))),
            8000u);
}

TEST(Status, SmallViolationsAllFit) {
  std::vector<Violation> violations;
  for (int i = 0; i < 50; ++i)
    violations.push_back({absl::StrCat("q_lengths[", i, "]"), "is -1; from 0 to 5"});
  google::rpc::BadRequest bad;
  ASSERT_TRUE(Details(ToGrpcStatus(InvalidRequest(violations))).details(1).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations_size(), 50);
}

TEST(Status, MessagesArePrintable) {
  const grpc::Status status = ToGrpcStatus(absl::NotFoundError("no\ncache \xc3\xa9\x01"));
  EXPECT_EQ(status.error_message(), "no?cache ???");
}

TEST(Error, KeepsWhatWasAttached) {
  const absl::Status invalid = InvalidRequest({{"a", "1"}, {"b", ""}, {"c", "3"}, {"d", "4"}});
  EXPECT_EQ(invalid.message(), "a: 1; b: ; c: 3; and 1 more");
  const std::vector<Violation> violations = GetViolations(invalid);
  ASSERT_EQ(violations.size(), 4u);
  EXPECT_EQ(violations[1].field, "b");
  EXPECT_EQ(violations[1].description, "");
  EXPECT_EQ(violations[3].description, "4");
  EXPECT_EQ(GetReason(invalid), "INVALID_REQUEST");
  EXPECT_EQ(GetRetryDelay(invalid), std::nullopt);
  const absl::Status exhausted = Exhausted("POOL_FULL", "no memory", absl::Milliseconds(20));
  EXPECT_EQ(GetReason(exhausted), "POOL_FULL");
  EXPECT_EQ(GetRetryDelay(exhausted), absl::Milliseconds(20));
  EXPECT_TRUE(GetViolations(exhausted).empty());
  EXPECT_EQ(GetReason(absl::InternalError("plain")), "");
}

}  // namespace
}  // namespace attend::server
