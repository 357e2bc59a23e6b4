// Bytes that are no AttendRequest, or one of a newer API: refused, with the place and the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/error.h"
#include "server/wire/decoder.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<Violation> ViolationsOf(absl::string_view message) {
  grpc::ByteBuffer buffer = OneSlice(message);
  AttendDecoder decoder(&buffer, {});
  const absl::Status status = decoder.ReadSpecs();
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  return GetViolations(status);
}

// The first violation of a valid request with these bytes behind it.
Violation After(absl::string_view bytes) {
  const std::vector<Violation> violations =
      ViolationsOf(SmallRequest().SerializeAsString().append(bytes.data(), bytes.size()));
  return violations.empty() ? Violation{} : violations.front();
}

#define BYTES(literal) absl::string_view(literal, sizeof(literal) - 1)

TEST(Unknown, FieldsAreNamed) {
  const Violation v = After(BYTES("\xd8\x02\x01"));  // field 43, varint
  EXPECT_EQ(v.field, "AttendRequest");
  EXPECT_EQ(v.description, "field number 43 of wire type 0 is not known to this server (a newer API?)");
}

TEST(Unknown, FieldsOfEveryWireTypeAreReadOver) {
  for (const auto& [bytes, number] :
       std::vector<std::pair<absl::string_view, std::string>>{{BYTES("\xa1\x01"
                                                                     "12345678"),
                                                               "20 of wire type 1"},
                                                              {BYTES("\xaa\x01\x03"
                                                                     "abc"),
                                                               "21 of wire type 2"},
                                                              {BYTES("\xb5\x01"
                                                                     "1234"),
                                                               "22 of wire type 5"}}) {
    EXPECT_THAT(After(bytes).description, HasSubstr(number));
    EXPECT_THAT(After(bytes).description, HasSubstr("newer API"));
  }
}

TEST(Unknown, FieldsOfASpecAreNamed) {
  const Violation v = After(BYTES("\x82\x01\x02\x18\x01"));  // sinks { 3: 1 }
  EXPECT_EQ(v.field, "sinks");
  EXPECT_THAT(v.description, HasSubstr("field number 3 of wire type 0"));
}

TEST(Unknown, AKnownFieldOfAnotherWireTypeIsUnknown) {
  EXPECT_THAT(After(BYTES("\x22\x01x")).description, HasSubstr("field number 4 of wire type 2"));  // layout
  EXPECT_THAT(After(BYTES("\x38\x01")).description, HasSubstr("field number 7 of wire type 0"));   // scale
  EXPECT_THAT(After(BYTES("\xa8\x06\x01")).description, HasSubstr("field number 101 of wire type 0"));
  EXPECT_THAT(After(BYTES("\x5d"
                          "1234"))
                  .description,
              HasSubstr("field number 11 of wire type 5"));
}

TEST(Unknown, EnumValuesAreSaidBesideOtherFaults) {
  v1::AttendRequest r = SmallRequest();
  r.set_kernel(static_cast<v1::Kernel>(6));
  const std::vector<Violation> violations = ViolationsOf(r.SerializeAsString() + "\xd8\x02\x01");
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[1].field, "kernel");
}

TEST(Malformed, Groups) {
  EXPECT_THAT(After(BYTES("\xdb\x02\xdc\x02")).description, HasSubstr("field number 43 of wire type 3"));
}

TEST(Malformed, TagsAndVarints) {
  const std::string kForever(11, '\xff');
  EXPECT_THAT(After(BYTES("\x00")).description, HasSubstr("field number 0 at byte"));
  EXPECT_THAT(After(BYTES("\x02\x00")).description, HasSubstr("field number 0 at byte"));
  EXPECT_THAT(After(kForever).description, HasSubstr("bad or cut varint at byte"));
  EXPECT_THAT(After("\x48" + kForever).description, HasSubstr("bad or cut varint"));  // window_left
  EXPECT_THAT(After(BYTES("\xc8\x80\x80\x80\x80\x00\x01")).description,
              HasSubstr("varint"));  // a tag of 6 bytes
  EXPECT_THAT(After(BYTES("\x48")).description, HasSubstr("bad or cut varint"));
  EXPECT_THAT(After(BYTES("\x3d\x01\x02")).description, HasSubstr("cut value"));
}

TEST(Malformed, SizesThatPassTheEnd) {
  const Violation data =
      After(BYTES("\xaa\x06\x05"
                  "abcd"));  // q_data of 5 bytes, of which 4 came
  EXPECT_EQ(data.field, "q_data");
  EXPECT_THAT(data.description, HasSubstr("a size of 5 that passes the message's end"));
  EXPECT_EQ(After(BYTES("\x0a\x02\x08")).field, "q");
  EXPECT_THAT(After(BYTES("\x0a\x03\x12\x05\x01")).description, HasSubstr("passes the message's end"));
  EXPECT_THAT(After(BYTES("\x5a\xff\xff\xff\xff\x0f\x01")).description, HasSubstr("a size of 4294967295"));
}

TEST(Malformed, AVarintMayNotCrossTheEndOfItsMessage) {
  // sinks { dtype: <a varint whose second byte lies behind the message> }
  EXPECT_EQ(After(BYTES("\x82\x01\x02\x08\x81\x00")).field, "sinks");
  EXPECT_EQ(After(BYTES("\x5a\x01\x81\x00")).field, "q_lengths");
}

TEST(Malformed, EveryPrefixOfARequestIsRefused) {
  Rng rng(7);
  for (int i = 0; i < 20; ++i) {
    v1::AttendRequest r = RandomRequest(rng);
    if (r.q_data().empty()) continue;
    // Only what is required: no prefix of it can be a request.
    v1::AttendRequest least;
    least.set_layout(r.layout());
    *least.mutable_q() = r.q();
    *least.mutable_k() = r.k();
    *least.mutable_v() = r.v();
    *least.mutable_q_lengths() = r.q_lengths();
    *least.mutable_kv_lengths() = r.kv_lengths();
    least.set_q_data(r.q_data());
    least.set_k_data(r.k_data());
    least.set_v_data(r.v_data());
    const std::string message = least.SerializeAsString();
    const size_t needed = least.v_data().empty() ? message.size() - least.k_data().size() : message.size();
    for (size_t size = 0; size < std::min(needed, message.size()); ++size) {
      if (least.v_data().empty()) break;
      ASSERT_THAT(ViolationsOf(absl::string_view(message).substr(0, size)), Not(IsEmpty())) << size;
    }
  }
}

TEST(Malformed, CompressedBytesAreSaidToBe) {
  for (const absl::string_view start :
       {BYTES("\x1f\x8b\x08"), BYTES("\x78\x9c\xed"), BYTES("\x78\x01\xed")}) {
    const std::vector<Violation> violations = ViolationsOf(std::string(start) + std::string(64, '\xff'));
    ASSERT_FALSE(violations.empty());
    EXPECT_EQ(violations.back().description, "looks compressed; compressed requests are refused");
  }
}

}  // namespace
}  // namespace attend::server
