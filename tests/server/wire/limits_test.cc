// Each bound of the decoder, at its edge: what is allowed, and what is said of one more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/wire/violation_testing.h"

namespace attend::server {
namespace {

using ::testing::SizeIs;

void ExpectLimit(const Request& at, const Request& above, const DecodeLimits& limits, const char* field,
                 const char* says) {
  EXPECT_TRUE(ReadSpecs(at, limits).ok()) << ReadSpecs(at, limits);
  ExpectViolation(ReadSpecs(above, limits), {"", {}, field, says});
}

TEST(Limits, RequestBytes) {
  DecodeLimits limits;
  const Request r = SmallRequest();
  limits.request_bytes_max = static_cast<int64_t>(r.ByteSizeLong());
  EXPECT_TRUE(ReadSpecs(r, limits).ok());
  --limits.request_bytes_max;
  ExpectViolation(ReadSpecs(r, limits), {"", {}, "AttendRequest", "bytes; at most "});
}

TEST(Limits, Batch) {
  DecodeLimits limits;
  limits.batch_max = 2;
  Request above = SmallRequest();
  for (v1::TensorSpec* spec : {above.mutable_q(), above.mutable_k(), above.mutable_v()})
    spec->set_shape(0, 3);
  above.set_q_data(std::string(576, 'q'));
  above.set_k_data(std::string(480, 'k'));
  above.set_v_data(std::string(480, 'v'));
  ExpectLimit(SmallRequest(), above, limits, "q.shape[0]", "is a batch of 3; at most 2");
}

TEST(Limits, PackedBatch) {
  DecodeLimits limits;
  limits.batch_max = 3;
  EXPECT_TRUE(ReadSpecs(PackedRequest(), limits).ok());
  limits.batch_max = 2;
  const std::vector<Violation> violations = GetViolations(ReadSpecs(PackedRequest(), limits));
  ASSERT_THAT(violations, SizeIs(2));
  EXPECT_EQ(violations[0].field, "q_lengths");
  EXPECT_EQ(violations[0].description, "has 3 entries; at most 2");
}

TEST(Limits, Heads) {
  DecodeLimits limits;
  limits.heads_max = 4;
  EXPECT_TRUE(ReadSpecs(SmallRequest(), limits).ok());
  limits.heads_max = 3;
  ExpectViolation(ReadSpecs(SmallRequest(), limits), {"", {}, "q.shape[1]", "is 4 query heads; from 1 to 3"});
}

TEST(Limits, WeightRows) {
  DecodeLimits limits;
  limits.weight_rows_max = 2;
  Request at = SmallRequest();
  at.add_weight_rows(2);
  at.add_weight_rows(2);
  Request above = at;
  above.add_weight_rows(0);
  ExpectLimit(at, above, limits, "weight_rows", "has 3 entries; at most 2");
}

TEST(Limits, ResponseBytes) {
  DecodeLimits limits;
  Request r = SmallRequest();
  r.set_return_lse(true);
  r.set_return_weights(true);
  const int64_t bytes = 2 * 4 * 3 * 8 * 2 + 2 * 4 * 3 * 4 + 2 * 4 * 3 * 5 * 4;
  limits.response_bytes_max = bytes + 4096;  // room for specs and report
  EXPECT_TRUE(ReadSpecs(r, limits).ok());
  --limits.response_bytes_max;
  ExpectViolation(ReadSpecs(r, limits),
                  {"", {}, "return_weights", "makes a reply of 960 bytes of tensors; the limit is 959"});
}

TEST(Limits, AReplyOfMoreThan2GiBIsRefusedWhateverTheLimit) {
  DecodeLimits limits;
  limits.response_bytes_max = kHuge;
  Request r;  // [1,1,32768,8]: 512 KiB, whose weights are 4 GiB
  for (v1::TensorSpec* spec : {r.mutable_q(), r.mutable_k(), r.mutable_v()}) {
    Spec(spec, v1::DATA_TYPE_FP16, {1, 1, 32768, 8});
  }
  for (std::string* data : {r.mutable_q_data(), r.mutable_k_data(), r.mutable_v_data()})
    data->resize(32768 * 16);
  r.set_return_weights(true);
  ExpectViolation(ReadSpecs(r, limits), {"", {}, "return_weights", "makes a reply of 4295491584 bytes"});
}

TEST(Limits, ProductsOfTheReplyMayNotOverflow) {
  Request r;  // no batch, so no bytes, but rows * keys passes 2^63
  Spec(r.mutable_q(), v1::DATA_TYPE_FP16, {0, 1, int64_t{1} << 40, 8});
  Spec(r.mutable_k(), v1::DATA_TYPE_FP16, {0, 1, int64_t{1} << 40, 8});
  Spec(r.mutable_v(), v1::DATA_TYPE_FP16, {0, 1, int64_t{1} << 40, 8});
  EXPECT_TRUE(ReadSpecs(r).ok()) << ReadSpecs(r);
  r.set_return_weights(true);
  ExpectViolation(ReadSpecs(r), {"", {}, "return_weights", "more than 2^63 bytes"});
}

}  // namespace
}  // namespace attend::server
