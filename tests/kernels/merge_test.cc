#include "kernels/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/float16.h"
#include "tests/kernels/host_float.h"

namespace attend {
namespace {

constexpr float kInfinity = INFINITY;

struct Merged {
  std::vector<float> out, lse;
};

Merged Merge(const std::vector<std::vector<float>>& outs, const std::vector<std::vector<float>>& lses,
             int32_t dim, const float* sinks = nullptr) {
  std::vector<PartialState> parts;
  for (size_t i = 0; i < outs.size(); ++i) parts.push_back({outs[i].data(), lses[i].data()});
  Merged m{std::vector<float>(outs[0].size(), NAN), std::vector<float>(lses[0].size(), NAN)};
  EXPECT_TRUE(MergePartials(parts, static_cast<int64_t>(lses[0].size()), dim, DataType::kFp32, sinks,
                            m.out.data(), m.lse.data())
                  .ok());
  return m;
}

TEST(MergeTest, NothingAndNothingIsNothing) {
  const Merged m = Merge({{0, 0}, {0, 0}}, {{-kInfinity}, {-kInfinity}}, 2);
  EXPECT_EQ(m.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(m.lse[0], -kInfinity);
}

TEST(MergeTest, NothingIsNeutralBitByBit) {
  const std::vector<float> out = {0.1f, -3.7f, 1e-20f, 5e8f}, lse = {1.2345f, -80.5f};
  const std::vector<float> no_out = {0, 0, NAN, 0}, no_lse = {-kInfinity, -kInfinity};
  for (const bool first : {true, false}) {
    const Merged m = first ? Merge({no_out, out}, {no_lse, lse}, 2) : Merge({out, no_out}, {lse, no_lse}, 2);
    EXPECT_EQ(m.out, out);
    EXPECT_EQ(m.lse, lse);
  }
}

TEST(MergeTest, NaturalLogarithm) {
  // Two parts of equal weight: ln 2 more, the mean of both.
  const Merged m = Merge({{1, 3}, {3, 7}}, {{2.0f}, {2.0f}}, 2);
  EXPECT_FLOAT_EQ(m.out[0], 2.0f);
  EXPECT_FLOAT_EQ(m.out[1], 5.0f);
  EXPECT_FLOAT_EQ(m.lse[0], 2.0f + std::log(2.0f));
}

TEST(MergeTest, WeightsByExponentialsOfLse) {
  const Merged m = Merge({{1}, {0}, {0}}, {{std::log(1.0f)}, {std::log(2.0f)}, {std::log(5.0f)}}, 1);
  EXPECT_NEAR(m.out[0], 1.0 / 8, 1e-7);
  EXPECT_NEAR(m.lse[0], std::log(8.0), 1e-6);
}

TEST(MergeTest, SinkEntersOnceAndEntersTheMaximum) {
  const float sinks[] = {100.0f};
  const Merged m = Merge({{1}, {1}}, {{0.0f}, {0.0f}}, 1, sinks);
  EXPECT_FLOAT_EQ(m.lse[0], 100.0f);
  EXPECT_NEAR(m.out[0], 2 * std::exp(-100.0), 1e-43);
  const float even[] = {std::log(2.0f)};
  EXPECT_FLOAT_EQ(Merge({{1}, {1}}, {{0.0f}, {0.0f}}, 1, even).out[0], 0.5f);
}

TEST(MergeTest, SinkAlone) {
  const float sinks[] = {-7.25f};
  const Merged m = Merge({{0}}, {{-kInfinity}}, 1, sinks);
  EXPECT_EQ(m.out[0], 0.0f);
  EXPECT_EQ(m.lse[0], -7.25f);
}

TEST(MergeTest, NanStaysInItsRow) {
  const Merged m = Merge({{NAN, 1}, {1, 1}}, {{NAN, 0}, {0, 0}}, 1);
  EXPECT_TRUE(std::isnan(m.out[0]));
  EXPECT_TRUE(std::isnan(m.lse[0]));
  EXPECT_EQ(m.out[1], 1.0f);
}

TEST(MergeTest, HugeLogarithmsDoNotOverflow) {
  const Merged m = Merge({{1}, {2}}, {{1e30f}, {-1e30f}}, 1);
  EXPECT_EQ(m.out[0], 1.0f);
  EXPECT_EQ(m.lse[0], 1e30f);
}

TEST(MergeTest, WritesTheTypeAskedFor) {
  const float out[] = {1.0009765625f}, lse[] = {0};
  const PartialState part = {out, lse};
  uint16_t fp16 = 0, bf16 = 0;
  ASSERT_TRUE(MergePartials({&part, 1}, 1, 1, DataType::kFp16, nullptr, &fp16, nullptr).ok());
  ASSERT_TRUE(MergePartials({&part, 1}, 1, 1, DataType::kBf16, nullptr, &bf16, nullptr).ok());
  EXPECT_EQ(test::FromFp16(fp16), 1.0009765625f);
  EXPECT_EQ(test::FromBf16(bf16), 1.0f);
}

TEST(MergeTest, RefusesNoParts) {
  EXPECT_EQ(MergePartials({}, 1, 8, DataType::kFp32, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

// The bit tricks against plain arithmetic, over every 16-bit value and around every rounding.
TEST(Float16Test, AgreesWithPlainArithmetic) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto x = static_cast<uint16_t>(bits);
    const float half = test::FromFp16(x), brain = test::FromBf16(x);
    if (!std::isnan(half)) {
      ASSERT_EQ(FromFp16Bits(x), half);
      ASSERT_EQ(ToFp16Bits(half), x);
    }
    if (!std::isnan(brain)) {
      ASSERT_EQ(FromBf16Bits(x), brain);
      ASSERT_EQ(ToBf16Bits(brain), x);
    }
  }
  for (uint64_t bits = 0; bits < 0x100000000; bits += 4093) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(FromFp16Bits(ToFp16Bits(x))));
      continue;
    }
    ASSERT_EQ(ToFp16Bits(x), test::ToFp16(x)) << x;
  }
}

}  // namespace
}  // namespace attend
