// Every way in which a well-formed request can be wrong: what is said, of which field.
#include "server/wire/violations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "server/error.h"
#include "server/wire/decoder.h"
#include "tests/server/wire/violation_testing.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

using ::testing::Contains;
using ::testing::SizeIs;
class DenseViolation : public testing::TestWithParam<Case> {};
TEST_P(DenseViolation, IsSaid) {
  Request r = SmallRequest();  // q [2,4,3,8], k and v [2,2,5,8], fp16
  GetParam().spoil(r);
  ExpectViolation(ReadSpecs(r), GetParam());
}

class PackedViolation : public testing::TestWithParam<Case> {};
TEST_P(PackedViolation, IsSaid) {
  Request r = PackedRequest();
  GetParam().spoil(r);
  ExpectViolation(ReadSpecs(r), GetParam());
}

auto Name() {
  return [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); };
}

const Case kTensorCases[] = {
    {"DtypeUnspecified",
     [](Request& r) {
       r.mutable_bias();
       Spec(r.mutable_bias(), v1::DATA_TYPE_UNSPECIFIED, {1, 1, 1, 1});
     },
     "bias.dtype", "DATA_TYPE_UNSPECIFIED; supported: DATA_TYPE_FP32, DATA_TYPE_FP16"},
    {"KOfOtherDtype", [](Request& r) { r.mutable_k()->set_dtype(v1::DATA_TYPE_BF16); }, "k.dtype",
     "is DATA_TYPE_BF16; must be that of q, DATA_TYPE_FP16"},
    {"VOfUnknownDtype", [](Request& r) { r.mutable_v()->set_dtype(static_cast<v1::DataType>(99)); },
     "v.dtype", "value 99, which this server does not know"},
    {"RankOfQ", [](Request& r) { r.mutable_q()->add_shape(1); }, "q.shape", "has 5 sizes; must have 4"},
    {"NoShape", [](Request& r) { r.mutable_k()->clear_shape(); }, "k.shape", "has 0 sizes; must have 4"},
    {"NegativeSize", [](Request& r) { r.mutable_q()->set_shape(2, -1); }, "q.shape[2]",
     "is -1; must be 0 or more"},
    {"OverflowingShape", [](Request& r) { r.mutable_q()->set_shape(2, kHuge / 2); }, "q.shape",
     "multiplies to more than 2^63 bytes"},
    {"OverflowHiddenByAZero",
     [](Request& r) {
       r.mutable_q()->set_shape(0, 0);
       r.mutable_q()->set_shape(2, kHuge);
       r.clear_q_data();
     },
     "q.shape", "multiplies to more than 2^63 bytes"},
    {"NoHeads",
     [](Request& r) {
       r.mutable_q()->set_shape(1, 0);
       r.clear_q_data();
     },
     "q.shape[1]", "is 0 query heads; from 1 to 65536"},
    {"KBatchDiffers",
     [](Request& r) {
       r.mutable_k()->set_shape(0, 1);
       r.set_k_data(std::string(160, 'k'));
     },
     "k.shape[0]", "is 1, but q.shape[0] is 2"},
    {"VLengthDiffers",
     [](Request& r) {
       r.mutable_v()->set_shape(2, 4);
       r.set_v_data(std::string(256, 'v'));
     },
     "v.shape[2]", "is 4, but k.shape[2] is 5"},
    {"VHeadsDiffer",
     [](Request& r) {
       r.mutable_v()->set_shape(1, 1);
       r.set_v_data(std::string(160, 'v'));
     },
     "v.shape[1]", "is 1, but k.shape[1] is 2"},
    {"HeadDimDiffers",
     [](Request& r) {
       r.mutable_k()->set_shape(3, 16);
       r.set_k_data(std::string(640, 'k'));
     },
     "k.shape[3]", "is 16, but q.shape[3] is 8"},
    {"HeadDimNotAMultiple",
     [](Request& r) {
       r.mutable_v()->set_shape(3, 12);
       r.set_v_data(std::string(480, 'v'));
     },
     "v.shape[3]", "is head_dim 12; a multiple of 8 from 8 to 256"},
    {"HeadDimTooLarge",
     [](Request& r) {
       r.mutable_v()->set_shape(3, 264);
       r.set_v_data(std::string(20 * 264 * 2, 'v'));
     },
     "v.shape[3]", "is head_dim 264"},
    {"HeadDimZero",
     [](Request& r) {
       r.mutable_v()->set_shape(3, 0);
       r.clear_v_data();
     },
     "v.shape[3]", "is head_dim 0"},
    {"RaggedGroups",
     [](Request& r) {
       r.mutable_q()->set_shape(1, 3);
       r.set_q_data(std::string(2 * 3 * 3 * 8 * 2, 'q'));
     },
     "q.shape[1]", "is 3 query heads; must be a multiple of the 2 heads of k and v"},
    {"DataTooShort", [](Request& r) { r.mutable_q_data()->pop_back(); }, "q_data",
     "has 383 bytes; shape [2,4,3,8] of 2-byte elements needs 384"},
    {"DataTooLong", [](Request& r) { r.mutable_v_data()->push_back('x'); }, "v_data", "has 321 bytes"},
    {"DataMissing", [](Request& r) { r.clear_k_data(); }, "k_data", "has 0 bytes"},
    {"StrayData", [](Request& r) { r.set_sinks_data("0123"); }, "sinks_data",
     "has 4 bytes, but there is no sinks"},
};
INSTANTIATE_TEST_SUITE_P(Tensors, DenseViolation, testing::ValuesIn(kTensorCases), Name());

const Case kOptionCases[] = {
    {"Layout", [](Request& r) { r.set_layout(static_cast<v1::Layout>(9)); }, "layout",
     "9 is not a Layout that this server knows"},
    {"Kernel", [](Request& r) { r.set_kernel(static_cast<v1::Kernel>(5)); }, "kernel", "5 is not a Kernel"},
    {"Causal", [](Request& r) { r.set_causal(static_cast<v1::CausalMode>(-1)); }, "causal",
     "-1 is not a CausalMode"},
    {"ScaleInfinite", [](Request& r) { r.set_scale(INFINITY); }, "scale", "is inf; must be finite"},
    {"ScaleNan", [](Request& r) { r.set_scale(NAN); }, "scale", "must be finite"},
    {"ScaleTooLarge", [](Request& r) { r.set_scale(-2e38f); }, "scale",
     "is -2e+38; must be finite and at most"},
    {"SoftcapTooLarge", [](Request& r) { r.set_softcap(2e38f); }, "softcap", "is 2e+38"},
    {"SoftcapZero", [](Request& r) { r.set_softcap(0); }, "softcap", "is 0; must be above 0"},
    {"SoftcapNegative", [](Request& r) { r.set_softcap(-2); }, "softcap", "is -2; must be above 0"},
    {"SoftcapNan", [](Request& r) { r.set_softcap(NAN); }, "softcap", "must be above 0"},
    {"WindowLeft", [](Request& r) { r.set_window_left(-1); }, "window_left", "is -1; must be 0 or more"},
    {"WindowRight", [](Request& r) { r.set_window_right(-kHuge); }, "window_right", "must be 0 or more"},
    {"LengthTooLong",
     [](Request& r) {
       r.add_q_lengths(3);
       r.add_q_lengths(4);
     },
     "q_lengths[1]", "is 4; from 0 to 3"},
    {"LengthNegative",
     [](Request& r) {
       r.add_kv_lengths(-1);
       r.add_kv_lengths(5);
     },
     "kv_lengths[0]", "is -1; from 0 to 5"},
    {"LengthCount", [](Request& r) { r.add_kv_lengths(1); }, "kv_lengths", "has 1 entries; the batch is 2"},
    {"FlashForAllWeights",
     [](Request& r) {
       r.set_kernel(v1::KERNEL_FLASH);
       r.set_return_weights(true);
     },
     "return_weights", "KERNEL_FLASH never forms all weights: ask for chosen weight_rows"},
    {"AllAndSomeWeights",
     [](Request& r) {
       r.set_return_weights(true);
       r.add_weight_rows(0);
     },
     "weight_rows", "excludes return_weights"},
    {"WeightRowTooLarge",
     [](Request& r) {
       r.add_weight_rows(2);
       r.add_weight_rows(3);
     },
     "weight_rows[1]", "is 3; from 0 to below the query length, 3"},
    {"WeightRowNegative", [](Request& r) { r.add_weight_rows(-1); }, "weight_rows[0]", "is -1"},
};
INSTANTIATE_TEST_SUITE_P(Options, DenseViolation, testing::ValuesIn(kOptionCases), Name());

const Case kScoreTensorCases[] = {
    {"BiasRank",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_FP32, {3, 5});
     },
     "bias.shape", "has 2 sizes; must have 4"},
    {"BiasDtype",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_BF16, {1, 1, 1, 1});
     },
     "bias.dtype", "is DATA_TYPE_BF16; supported: DATA_TYPE_FP32, DATA_TYPE_FP16"},
    {"BiasHeads",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_FP16, {1, 2, 3, 5});
     },
     "bias.shape[1]", "is 2; must be 1 or the query heads, 4"},
    {"BiasOverflow",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_FP16, {kHuge, kHuge, 1, 1});
     },
     "bias.shape", "multiplies to more than 2^63 bytes"},
    {"BiasBytes",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_FP32, {1, 1, 1, 5});
       r.set_bias_data("0123456789");
     },
     "bias_data", "has 10 bytes; shape [1,1,1,5] of 4-byte elements needs 20"},
    {"MaskDtype",
     [](Request& r) {
       Spec(r.mutable_mask(), v1::DATA_TYPE_FP32, {1, 1, 1, 1});
     },
     "mask.dtype", "is DATA_TYPE_FP32; supported: DATA_TYPE_BOOL"},
    {"MaskKeys",
     [](Request& r) {
       Spec(r.mutable_mask(), v1::DATA_TYPE_BOOL, {2, 4, 3, 6});
     },
     "mask.shape[3]", "is 6; must be 1 or the key length, 5"},
    {"MaskBytes",
     [](Request& r) {
       Spec(r.mutable_mask(), v1::DATA_TYPE_BOOL, {1, 1, 3, 5});
     },
     "mask_data", "has 0 bytes"},
    {"SlopesRank", [](Request& r) { Spec(r.mutable_alibi_slopes(), v1::DATA_TYPE_FP32, {}); },
     "alibi_slopes.shape", "has 0 sizes; must have 1 or 2"},
    {"SlopesBatch",
     [](Request& r) {
       Spec(r.mutable_alibi_slopes(), v1::DATA_TYPE_FP32, {1, 4});
       r.set_alibi_slopes_data(std::string(16, 0));
     },
     "alibi_slopes.shape[0]", "is 1; must be the batch, 2"},
    {"SlopesDtype", [](Request& r) { Spec(r.mutable_alibi_slopes(), v1::DATA_TYPE_FP16, {4}); },
     "alibi_slopes.dtype", "supported: DATA_TYPE_FP32"},
    {"SinksHeads",
     [](Request& r) {
       Spec(r.mutable_sinks(), v1::DATA_TYPE_FP32, {2});
       r.set_sinks_data(std::string(8, 0));
     },
     "sinks.shape[0]", "is 2; must be the query heads, 4"},
    {"SinksRank",
     [](Request& r) {
       Spec(r.mutable_sinks(), v1::DATA_TYPE_FP32, {2, 4});
     },
     "sinks.shape", "has 2 sizes; must have 1"},
    {"SinksBytes", [](Request& r) { Spec(r.mutable_sinks(), v1::DATA_TYPE_FP32, {4}); }, "sinks_data",
     "has 0 bytes"},
};
INSTANTIATE_TEST_SUITE_P(ScoreTensors, DenseViolation, testing::ValuesIn(kScoreTensorCases), Name());

const Case kPackedCases[] = {
    {"Rank", [](Request& r) { r.mutable_q()->add_shape(1); }, "q.shape", "has 4 sizes; must have 3"},
    {"SumTooSmall", [](Request& r) { r.set_q_lengths(2, 1); }, "q_lengths",
     "add up to 2; the packed tensors hold 3"},
    {"BeyondTheEnd", [](Request& r) { r.set_kv_lengths(1, 4); }, "kv_lengths[1]",
     "is 4: its sequence starts at 2 and passes the total of 5"},
    {"OverflowingSum", [](Request& r) { r.set_kv_lengths(1, kHuge); }, "kv_lengths[1]",
     "passes the total of 5"},
    {"Decreasing", [](Request& r) { r.set_kv_lengths(2, -1); }, "kv_lengths[2]", "is -1; must be 0 or more"},
    {"Missing",
     [](Request& r) {
       r.clear_kv_lengths();
       Spec(r.mutable_k(), v1::DATA_TYPE_BF16, {0, 2, 8});
       r.clear_k_data();
       Spec(r.mutable_v(), v1::DATA_TYPE_BF16, {0, 2, 8});
       r.clear_v_data();
     },
     "kv_lengths", "has 0 entries, but q_lengths has 3"},
    {"Bias",
     [](Request& r) {
       Spec(r.mutable_bias(), v1::DATA_TYPE_FP32, {1, 1, 1, 1});
       r.set_bias_data("0123");
     },
     "bias", "is for dense layouts"},
    {"Mask",
     [](Request& r) {
       Spec(r.mutable_mask(), v1::DATA_TYPE_BOOL, {1, 1, 1, 1});
       r.set_mask_data("\1");
     },
     "mask", "is for dense layouts"},
    {"Weights", [](Request& r) { r.set_return_weights(true); }, "return_weights", "is for dense layouts"},
    {"WeightRows", [](Request& r) { r.add_weight_rows(1); }, "weight_rows", "is for dense layouts"},
};
INSTANTIATE_TEST_SUITE_P(Packed, PackedViolation, testing::ValuesIn(kPackedCases), Name());

TEST(Violations, APackedRequestIsValid) { EXPECT_TRUE(ReadSpecs(PackedRequest()).ok()); }

TEST(Violations, AreAllSaidAtOnce) {
  Request r = SmallRequest();
  r.mutable_q()->set_shape(3, 12);
  r.mutable_k()->set_dtype(v1::DATA_TYPE_FP32);
  r.clear_v();
  r.set_scale(NAN);
  r.set_window_left(-3);
  r.set_causal(static_cast<v1::CausalMode>(44));
  Spec(r.mutable_sinks(), v1::DATA_TYPE_BOOL, {4, 4});
  const std::vector<Violation> violations = GetViolations(ReadSpecs(r));
  for (const char* field : {"q.shape[3]", "k.dtype", "v", "v_data", "scale", "window_left", "causal",
                            "sinks.dtype", "sinks.shape"}) {
    EXPECT_THAT(violations, Contains(testing::Field(&Violation::field, field)));
  }
  EXPECT_THAT(violations, SizeIs(9));
}

TEST(Violations, AnEmptyRequestLacksItsTensors) {
  const std::vector<Violation> violations = GetViolations(ReadSpecs(Request()));
  ASSERT_THAT(violations, SizeIs(3));
  EXPECT_EQ(violations[0].field, "q");
  EXPECT_EQ(violations[0].description, "is required");
}

TEST(Violations, AMillionAreCountedAndNotKept) {
  Request r = PackedRequest();
  r.clear_layout();
  Spec(r.mutable_q(), v1::DATA_TYPE_BF16, {0, 4, 3, 8});
  for (int i = 0; i < 1000000; ++i) r.add_weight_rows(-1);
  DecodeLimits limits;
  limits.weight_rows_max = 1 << 20;
  r.mutable_q()->set_shape(0, 1);
  r.set_q_data(std::string(192, 'q'));
  Spec(r.mutable_k(), v1::DATA_TYPE_BF16, {1, 2, 5, 8});
  Spec(r.mutable_v(), v1::DATA_TYPE_BF16, {1, 2, 5, 16});
  r.clear_q_lengths();
  r.clear_kv_lengths();
  const std::vector<Violation> violations = GetViolations(ReadSpecs(r, limits));
  EXPECT_THAT(violations, SizeIs(ViolationList::kListed + 1));
  EXPECT_EQ(violations.back().description, "999936 more faults");
}

TEST(Tensors, MaskBytesAreZeroOrOne) {
  Request r = SmallRequest();
  Spec(r.mutable_mask(), v1::DATA_TYPE_BOOL, {1, 1, 3, 5});
  r.set_mask_data(std::string(15, '\1'));
  r.mutable_mask_data()->at(7) = 2;
  grpc::ByteBuffer message = OneSlice(r.SerializeAsString());
  AttendDecoder decoder(&message, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  TestPool pool;
  const HostBlock block = *pool.Allocate(decoder.input_bytes());
  CallTensors tensors;
  ExpectViolation(decoder.ReadTensors(block, &tensors), {"", {}, "mask_data", "byte 7 is 2; must be 0 or 1"});
}

}  // namespace
}  // namespace attend::server
