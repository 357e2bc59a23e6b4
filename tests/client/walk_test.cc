// What the tool computes by itself: the float64 reference, the row walk, percentiles, number formats.
#include "client/cli/walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "client/cli/accuracy.h"
#include "client/cli/inputs.h"
#include "client/cli/load.h"
#include "client/cli/numbers.h"
#include "client/cli/reference.h"

namespace attend::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

MATCHER_P(Near, tolerance, "") { return std::fabs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Numbers, EveryHalfComesBackAsItWas) {
  for (const DataType dtype : {DataType::kFp16, DataType::kBf16}) {
    for (int bits = 0; bits < 0x10000; ++bits) {
      const auto in = static_cast<uint16_t>(bits);
      uint16_t out = 0;
      const double value = ToDouble(dtype, &in, 0);
      FromDouble(value, dtype, &out, 0);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(ToDouble(dtype, &out, 0)));
      } else {
        ASSERT_EQ(in, out) << Name(dtype) << " " << value;
      }
    }
  }
}

TEST(Numbers, RoundsToNearestEven) {
  uint16_t bits = 0;
  const auto half = [&](double value) { return FromDouble(value, DataType::kFp16, &bits, 0), bits; };
  EXPECT_EQ(half(1 + std::ldexp(1, -11)), 0x3c00);      // halfway: to the even one, 1
  EXPECT_EQ(half(1 + 3 * std::ldexp(1, -11)), 0x3c02);  // halfway: up to the even one
  EXPECT_EQ(half(1 + std::ldexp(1, -11) + 1e-9), 0x3c01);
  EXPECT_EQ(half(65519.9), 0x7bff);
  EXPECT_EQ(half(65520), 0x7c00);
  EXPECT_EQ(half(std::ldexp(1, -25)), 0);  // halfway between 0 and the smallest
  const auto bfloat = [&](double value) { return FromDouble(value, DataType::kBf16, &bits, 0), bits; };
  EXPECT_EQ(bfloat(1 + std::ldexp(1, -8)), 0x3f80);
  EXPECT_EQ(bfloat(1 + std::ldexp(1, -8) + 1e-12), 0x3f81);  // lost if rounded to fp32 first
  EXPECT_EQ(bfloat(133120), 0x4802);
}

// By hand: scores 0 and log 3, so weights 1/4 and 3/4.
TEST(Reference, IsSoftmaxOfScoresTimesV) {
  std::vector<float> q(8, 0), k(16, 0), v(16, 0);
  q[0] = 1;
  k[8] = static_cast<float>(std::log(3));
  v[0] = 4;
  v[8] = 8;
  Request request;
  request.q = {DataType::kFp32, {1, 1, 1, 8}, q.data()};
  request.k = {DataType::kFp32, {1, 1, 2, 8}, k.data()};
  request.v = {DataType::kFp32, {1, 1, 2, 8}, v.data()};
  request.scale = 1;
  request.return_weights = true;
  const auto result = Reference(request);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->weights, ElementsAre(DoubleNear(0.25, 1e-7), DoubleNear(0.75, 1e-7)));
  EXPECT_NEAR(result->out[0], 7, 1e-6);
  EXPECT_NEAR(result->lse[0], std::log(4), 1e-7);
}

// K1: rows before the first key see nothing.
TEST(Reference, RowsThatSeeNoKeyAreZeroAndMinusInfinity) {
  Inputs inputs = RandomInputs({1, 1, 4, 8}, DataType::kFp32, 1);
  inputs.request.k.shape[2] = inputs.request.v.shape[2] = 2;
  inputs.request.causal = Causal::kBottomRight;
  const auto result = Reference(inputs.request);
  for (size_t d = 0; d < 16; ++d) EXPECT_EQ(result->out[d], 0);
  EXPECT_EQ(result->lse[1], -kInfinity);
  EXPECT_EQ(result->out[16], ToDouble(DataType::kFp32, inputs.request.v.data, 0));
}

// Whatever a caller asks for, no index lies outside of a tensor.
TEST(Reference, RefusesWhatDoesNotFit) {
  Inputs inputs = RandomInputs({2, 2, 4, 8}, DataType::kFp32, 1);
  const float numbers[64] = {};
  const std::vector<void (*)(Request&, const float*)> faults = {
      [](Request& r, const float*) {
        r.q_lengths = {5, 1};
      },
      [](Request& r, const float*) {
        r.kv_lengths = {1, -1};
      },
      [](Request& r, const float*) { r.kv_lengths = {1}; },
      [](Request& r, const float*) { r.k.shape[2] = 3; },
      [](Request& r, const float*) {
        r.q.shape = {4, 2, 8};
      },
      [](Request& r, const float*) { r.k.shape[1] = r.v.shape[1] = 0; },
      [](Request& r, const float* n) {
        r.bias = {DataType::kFp32, {1, 2, 4}, n};
      },
      [](Request& r, const float* n) {
        r.mask = {DataType::kBool, {1, 3, 1, 1}, n};
      },
      [](Request& r, const float* n) {
        r.sinks = {DataType::kFp32, {1}, n};
      },
      [](Request& r, const float* n) {
        r.alibi_slopes = {DataType::kFp32, {1, 2}, n};
      },
      [](Request& r, const float*) {
        r.layout = Layout::kPacked;
        r.q.shape = r.k.shape = r.v.shape = {8, 2, 8};
        r.q_lengths = {5, 3};
        r.kv_lengths = {5, 2};
      },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    Request request = inputs.request;
    faults[i](request, numbers);
    EXPECT_EQ(Reference(request).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

// All layouts are the same numbers in another order.
TEST(Reference, LayoutsAgree) {
  const Inputs bhld = RandomInputs({2, 3, 5, 8}, DataType::kFp32, 1);
  std::vector<std::vector<float>> moved(3, std::vector<float>(2 * 3 * 5 * 8));
  const float* const from[] = {static_cast<const float*>(bhld.request.q.data),
                               static_cast<const float*>(bhld.request.k.data),
                               static_cast<const float*>(bhld.request.v.data)};
  const auto blhd = [](int b, int h, int l, int d) {
    return static_cast<size_t>(((b * 5 + l) * 3 + h) * 8 + d);
  };
  const auto index = [](int b, int h, int l, int d) {
    return static_cast<size_t>(((b * 3 + h) * 5 + l) * 8 + d);
  };
  const auto each = [](auto f) {
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 3; ++h)
        for (int l = 0; l < 5; ++l)
          for (int d = 0; d < 8; ++d) f(b, h, l, d);
  };
  each([&](int b, int h, int l, int d) {
    for (size_t t = 0; t < 3; ++t) moved[t][blhd(b, h, l, d)] = from[t][index(b, h, l, d)];
  });
  Request request;
  request.q = {DataType::kFp32, {2, 5, 3, 8}, moved[0].data()};
  request.k = {DataType::kFp32, {2, 5, 3, 8}, moved[1].data()};
  request.v = {DataType::kFp32, {2, 5, 3, 8}, moved[2].data()};
  request.layout = Layout::kBlhd;
  const auto want = Reference(bhld.request), got = Reference(request);
  request.layout = Layout::kPacked;
  request.q.shape = request.k.shape = request.v.shape = {10, 3, 8};
  request.q_lengths = request.kv_lengths = {5, 5};
  const auto packed = Reference(request);
  each([&](int b, int h, int l, int d) {
    EXPECT_EQ(got->out[blhd(b, h, l, d)], want->out[index(b, h, l, d)]);
    EXPECT_EQ(packed->out[blhd(b, h, l, d)], want->out[index(b, h, l, d)]);
  });
  EXPECT_EQ(got->lse, want->lse);
  EXPECT_EQ(packed->lse[1 * 10 + 5 + 2], want->lse[(1 * 3 + 1) * 5 + 2]);
}

// The chunks do not matter, and all three ways lead to the reference.
TEST(Walk, EveryKernelsWayLeadsToTheReference) {
  Inputs inputs = RandomInputs({2, 4, 50, 16, 2}, DataType::kFp32, 7);
  const std::vector<float> sinks = {0.5f, 4, -1, 0};
  inputs.request.causal = Causal::kBottomRight;
  inputs.request.window_left = 30;
  inputs.request.sinks = {DataType::kFp32, {4}, sinks.data()};
  const auto want = Reference(inputs.request);
  for (const int64_t row : {0, 13, 49}) {
    for (const int64_t chunk : {1, 7, 16, 50, 1000}) {
      const auto walk = WalkRow(inputs.request, 1, 3, row, chunk);
      ASSERT_TRUE(walk.ok()) << walk.status();
      const auto first = want->out.begin() + ((1 * 4 + 3) * 50 + row) * 16;
      const std::vector<double> out(first, first + 16);
      EXPECT_THAT(walk->out, Pointwise(Near(1e-12), out));
      EXPECT_THAT(walk->naive_out, Pointwise(Near(1e-12), out));
      EXPECT_THAT(walk->online_out, Pointwise(Near(1e-12), out));
      EXPECT_NEAR(walk->lse, want->lse[static_cast<size_t>((1 * 4 + 3) * 50 + row)], 1e-12);
    }
  }
}

TEST(Walk, CorrectsByTheRiseOfTheMaximum) {
  Inputs inputs = RandomInputs({1, 1, 64, 8}, DataType::kFp32, 1);
  const auto walk = WalkRow(inputs.request, 0, 0, 63, 8);
  ASSERT_EQ(walk->chunks.size(), 8u);
  EXPECT_EQ(walk->chunks[0].correction, 0);  // nothing came before
  for (size_t c = 1; c < 8; ++c) {
    const double before = walk->chunks[c - 1].max, now = walk->chunks[c].max;
    EXPECT_DOUBLE_EQ(walk->chunks[c].correction, std::exp(before - now));
    EXPECT_GE(now, before);
  }
}

TEST(Walk, NamesTheRowThatIsMissing) {
  const Inputs inputs = RandomInputs({1, 1, 4, 8}, DataType::kFp32, 1);
  EXPECT_FALSE(WalkRow(inputs.request, 0, 0, 4, 8).ok());
  EXPECT_FALSE(WalkRow(inputs.request, 1, 0, 0, 8).ok());
  EXPECT_FALSE(WalkRow(inputs.request, 0, -1, 0, 8).ok());
}

TEST(Accuracy, ANaNOnOneSideIsInfinitelyFar) {
  const float got[] = {1, NAN, INFINITY, 2};
  EXPECT_EQ(Compare({DataType::kFp32, {4}, got}, {1, NAN, kInfinity, 2.5}).max, 0.5);
  EXPECT_EQ(Compare({DataType::kFp32, {4}, got}, {1, 0, kInfinity, 2}).max, kInfinity);
  EXPECT_EQ(Compare({DataType::kFp32, {4}, got}, {1, NAN, -kInfinity, 2}).max, kInfinity);
}

TEST(Load, PercentilesAreTheNearestRank) {
  LoadResult result;
  for (int i = 1; i <= 200; ++i) result.latency_s.push_back(i);
  EXPECT_EQ(result.Percentile(50), 100);
  EXPECT_EQ(result.Percentile(99), 198);
  EXPECT_EQ(result.Percentile(99.9), 200);
  EXPECT_EQ(result.Percentile(0), 1);
  EXPECT_TRUE(std::isnan(LoadResult().Percentile(50)));
}

// The model's own attention, in fp32 by torch, is what the formula says: tests/data is sound.
TEST(Data, EveryLayersOutIsAttentionOfItsQKV) {
  for (int layer = 0; layer < 6; ++layer) {
    const auto inputs = ReadInputs("tests/data/minilm/layer" + std::to_string(layer) + ".safetensors");
    ASSERT_TRUE(inputs.ok()) << inputs.status();
    const auto want = Reference(inputs->request);
    ASSERT_TRUE(want.ok());
    EXPECT_LT(Compare(*inputs->file->Find("out"), want->out).max, 4e-6);
  }
}

}  // namespace
}  // namespace attend::cli
