// Spoiled requests, and what the decoder must say of them.
#ifndef ATTEND_TESTS_SERVER_WIRE_VIOLATION_TESTING_H_
#define ATTEND_TESTS_SERVER_WIRE_VIOLATION_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "server/error.h"
#include "server/wire/decoder.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {

using Request = v1::AttendRequest;

inline constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

inline absl::Status ReadSpecs(const Request& request, const DecodeLimits& limits = {}) {
  grpc::ByteBuffer message = OneSlice(request.SerializeAsString());
  AttendDecoder decoder(&message, limits);
  return decoder.ReadSpecs();
}

inline void Spec(v1::TensorSpec* spec, v1::DataType dtype, const std::vector<int64_t>& shape) {
  spec->set_dtype(dtype);
  spec->mutable_shape()->Assign(shape.begin(), shape.end());
}

// Three sequences of query lengths 1, 0, 2 and key lengths 2, 3, 0.
inline Request PackedRequest() {
  Request r;
  r.set_layout(v1::LAYOUT_PACKED);
  Spec(r.mutable_q(), v1::DATA_TYPE_BF16, {3, 4, 8});
  Spec(r.mutable_k(), v1::DATA_TYPE_BF16, {5, 2, 8});
  Spec(r.mutable_v(), v1::DATA_TYPE_BF16, {5, 2, 16});
  r.set_q_data(std::string(3 * 4 * 8 * 2, 'q'));
  r.set_k_data(std::string(5 * 2 * 8 * 2, 'k'));
  r.set_v_data(std::string(5 * 2 * 16 * 2, 'v'));
  for (const int64_t length : {1, 0, 2}) r.add_q_lengths(length);
  for (const int64_t length : {2, 3, 0}) r.add_kv_lengths(length);
  return r;
}

struct Case {
  const char* name;
  std::function<void(Request&)> spoil;
  const char* field;
  const char* says;
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// What is expected: exactly one violation, of this field, that holds these words.
inline void ExpectViolation(const absl::Status& status, const Case& c) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<Violation> violations = GetViolations(status);
  ASSERT_THAT(violations, testing::SizeIs(1)) << status;
  EXPECT_EQ(violations[0].field, c.field);
  EXPECT_THAT(violations[0].description, testing::HasSubstr(c.says));
}

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_WIRE_VIOLATION_TESTING_H_
