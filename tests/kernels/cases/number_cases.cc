// Numbers at their edges: NaN, infinities, huge and tiny scores, sinks, accuracy (cases K6, K9 to K11, K22,
// K23).
#include <cmath>
#include <limits>

#include "tests/kernels/cases/kernel_case.h"

namespace attend::test {
namespace {

using NumberCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, NumberCase, ::testing::ValuesIn(AllParams()), ParamName);

void PoisonKey(HostLaunch& host, size_t problem, int64_t key, float x) {
  for (int64_t head = 0; head < host.problems()[problem].kv_heads; ++head) {
    host.FillK(problem, head, key, x);
    host.FillV(problem, head, key, x);
  }
}

TEST_P(NumberCase, K6_NanInMaskedKeysHasNoEffect) {
  for (const float x :
       {static_cast<float>(NAN), static_cast<float>(INFINITY), -static_cast<float>(INFINITY)}) {
    HostLaunch host(Spec({{.q_len = 100, .kv_len = 200, .mask = ScoreAxes{false, false, true}},
                          {.q_len = 100, .kv_len = 200, .bias = ScoreAxes{false, false, true}},
                          {.q_len = 1, .kv_len = 1500, .mask = ScoreAxes{false, false, true}},
                          {.q_len = 50, .kv_len = 200, .window_left = 10, .window_right = 10}}));
    for (const int64_t key : {0, 70, 131, 199}) {
      PoisonKey(host, 0, key, x);
      HostLaunch::Mutable(host.problems()[0].mask)[key] = 0;
      PoisonKey(host, 2, key, x);
      HostLaunch::Mutable(host.problems()[2].mask)[key] = 0;
    }
    PoisonKey(host, 3, 0, x);
    PoisonKey(host, 3, 139, x);
    // A bias of -inf counts as masked.
    LaunchSpec spec = Spec({{.q_len = 100, .kv_len = 200, .bias = ScoreAxes{}, .bias_is_fp32 = true}});
    HostLaunch biased(spec);
    for (const int64_t key : {3, 64, 199}) {
      PoisonKey(biased, 0, key, x);
      const Problem& p = biased.problems()[0];
      float* bias = const_cast<float*>(static_cast<const float*>(p.bias));
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 100; ++i)
          bias[h * p.bias_strides.head + i * p.bias_strides.row + key] = -INFINITY;
      }
    }
    RunAndCheck(host);
    RunAndCheck(biased);
  }
}

TEST_P(NumberCase, K6_NanInAVisibleKeyReachesExactlyItsRows) {
  HostLaunch host(Spec({{.q_len = 200, .kv_len = 200, .causal = Causal::kBottomRight},
                        {.q_len = 200, .kv_len = 200, .causal = Causal::kBottomRight, .window_left = 30},
                        {.q_len = 90, .kv_len = 300, .window_left = 5, .window_right = 9},
                        {.q_len = 90, .kv_len = 300, .mask = ScoreAxes{}},
                        {.q_len = 2, .kv_len = 900, .causal = Causal::kBottomRight}}));
  PoisonKey(host, 0, 77, NAN);
  PoisonKey(host, 1, 100, NAN);
  PoisonKey(host, 2, 250, NAN);
  PoisonKey(host, 3, 150, NAN);
  PoisonKey(host, 4, 899, NAN);
  RunAndCheck(host);
  EXPECT_FALSE(std::isnan(host.Out(0, 0, 76, 0)));
  EXPECT_TRUE(std::isnan(host.Out(0, 0, 77, 0)));
  EXPECT_TRUE(std::isnan(host.Lse(0, 0, 77)));
  EXPECT_TRUE(std::isnan(host.Out(1, 0, 130, 0)));
  EXPECT_FALSE(std::isnan(host.Out(1, 0, 131, 0)));
  EXPECT_FALSE(std::isnan(host.Lse(4, 0, 0)));
  EXPECT_TRUE(std::isnan(host.Lse(4, 0, 1)));
}

TEST_P(NumberCase, K6_NanOrInfinityInAValueReachesOneColumnOfItsRows) {
  for (const float x : {static_cast<float>(NAN), static_cast<float>(INFINITY)}) {
    HostLaunch host(Spec({{.q_len = 150, .kv_len = 150, .causal = Causal::kBottomRight},
                          {.q_len = 100, .kv_len = 150, .window_left = 20, .window_right = 3},
                          {.q_len = 3, .kv_len = 900, .causal = Causal::kBottomRight}}));
    host.SetV(0, 0, 70, 13, x);
    host.SetV(1, 1, 90, 63, x);
    host.SetV(2, 1, 898, 0, x);
    RunAndCheck(host);
    EXPECT_TRUE(std::isfinite(host.Out(0, 0, 69, 13)));
    EXPECT_FALSE(std::isfinite(host.Out(0, 0, 70, 13)));
    EXPECT_TRUE(std::isfinite(host.Out(0, 0, 70, 14)));
    EXPECT_TRUE(std::isfinite(host.Lse(0, 0, 70)));
    EXPECT_TRUE(std::isfinite(host.Out(2, 1, 0, 0)));
    EXPECT_FALSE(std::isfinite(host.Out(2, 1, 1, 0)));
  }
}

TEST_P(NumberCase, K6_NanInAQueryReachesItsRow) {
  HostLaunch host(
      Spec({{.q_len = 70, .kv_len = 140}, {.q_len = 70, .kv_len = 140, .causal = Causal::kBottomRight}}));
  for (const size_t problem : {0, 1}) host.SetQ(problem, 1, 33, 7, NAN);
  RunAndCheck(host);
  EXPECT_TRUE(std::isnan(host.Out(0, 1, 33, 0)));
  EXPECT_FALSE(std::isnan(host.Out(0, 1, 32, 0)));
  EXPECT_FALSE(std::isnan(host.Out(0, 0, 33, 0)));
}

TEST_P(NumberCase, K9_HugeEqualValues) {
  const float x = dtype() == DataType::kFp16 ? 60000.0f : 133120.0f;
  const float exact = dtype() == DataType::kFp16 ? 60000.0f : 133120.0f;
  HostLaunch host(Spec(
      {{.q_len = 70, .kv_len = 200, .fill = Fill::kConstant, .constant = x},
       {.q_len = 70, .kv_len = 200, .fill = Fill::kConstant, .constant = x, .causal = Causal::kBottomRight},
       {.q_len = 1, .kv_len = 1000, .fill = Fill::kConstant, .constant = x}}));
  Run(host);
  for (size_t p = 0; p < 3; ++p) {
    for (int64_t row = 0; row < host.problems()[p].q_len; ++row) {
      EXPECT_NEAR(host.Out(p, 1, row, 63), exact, dtype() == DataType::kFp32 ? 0.5 : 0.0) << p << " " << row;
      EXPECT_TRUE(std::isfinite(host.Lse(p, 1, row)));
    }
  }
}

TEST_P(NumberCase, K10_ScoresBeyondFp16) {
  HostLaunch host(Spec({{.q_len = 70, .kv_len = 200, .weights = Weights::kRows, .weight_rows = {0, 33, 69}},
                        {.q_len = 1, .kv_len = 900, .weights = AllWeights()}}));
  for (size_t p = 0; p < 2; ++p) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < host.problems()[p].q_len; ++i) {
        for (int64_t d = 0; d < 64; ++d) host.SetQ(p, h, i, d, 110.0f);
      }
      // q·k = 774400, or 440 less for each step down: only every third key counts.
      for (int64_t j = 0; j < host.problems()[p].kv_len; ++j) {
        host.FillK(p, h, j, 110.0f - 0.5f * static_cast<float>(j % 3));
      }
    }
  }
  RunAndCheck(host);
  EXPECT_NEAR(host.Lse(0, 0, 0), 774400.0f / 8 + std::log(67.0f), 0.2f);  // a few units in the last place
}

TEST_P(NumberCase, K11_ScaleZeroIsUniform) {
  HostLaunch host(Spec({{.q_len = 100, .kv_len = 100, .scale = 0.0f, .causal = Causal::kBottomRight},
                        {.q_len = 4, .kv_len = 800, .scale = 0.0f, .causal = Causal::kBottomRight},
                        {.q_len = 30, .kv_len = 100, .scale = 0.0f, .softcap = 3.0f}}));
  RunAndCheck(host);
  EXPECT_NEAR(host.Lse(0, 0, 99), std::log(100.0f), 1e-5f);
}

TEST_P(NumberCase, K11_NegativeScale) {
  RunAndCheck(Spec({{.q_len = 100, .kv_len = 100, .scale = -0.125f, .causal = Causal::kBottomRight},
                    {.q_len = 100, .kv_len = 150, .scale = -1.0f, .weights = AllWeights()},
                    {.q_len = 4, .kv_len = 800, .scale = -0.3f, .causal = Causal::kBottomRight},
                    {.q_len = 30, .kv_len = 100, .scale = -0.5f, .softcap = 2.0f}}));
}

TEST_P(NumberCase, Softcap) {
  RunAndCheck(
      Spec({{.q_len = 100, .kv_len = 150, .softcap = 1.5f},
            {.q_len = 100, .kv_len = 150, .scale = 1.0f, .softcap = 30.0f, .causal = Causal::kBottomRight},
            {.q_len = 1, .kv_len = 800, .softcap = 0.5f, .bias = ScoreAxes{}}}));
}

TEST_P(NumberCase, K22_LseIsTheNaturalLogarithm) {
  // Equal keys: lse = score + ln(kv_len).
  HostLaunch host(Spec({{.q_len = 3, .kv_len = 500, .fill = Fill::kConstant, .constant = 0.5f}}));
  RunAndCheck(host);
  EXPECT_NEAR(host.Lse(0, 0, 2), 64 * 0.25f / 8 + std::log(500.0f), 1e-4f);
}

TEST_P(NumberCase, K23_SinkAlone) {
  HostLaunch host(Spec({{.q_len = 3, .kv_len = 0, .q_padding = 2, .sinks = true},
                        {.q_len = 70, .kv_len = 40, .causal = Causal::kBottomRight, .sinks = true}}));
  RunAndCheck(host);
  EXPECT_EQ(host.Lse(0, 1, 2), host.problems()[0].sinks[1]);
  EXPECT_EQ(host.Lse(0, 1, 3), -INFINITY);  // padding has no sink
  EXPECT_EQ(host.Out(0, 1, 2, 0), 0.0f);
}

TEST_P(NumberCase, K23_HugeSinkEntersTheMaximum) {
  for (const float sink : {100.0f, 1000.0f, -100.0f, -static_cast<float>(INFINITY)}) {
    HostLaunch host(Spec({{.q_len = 70, .kv_len = 140, .sinks = true, .weights = AllWeights()},
                          {.q_len = 1, .kv_len = 1500, .sinks = true}}));
    for (const Problem& p : host.problems()) {
      for (int64_t h = 0; h < 2; ++h) HostLaunch::Mutable(p.sinks)[h] = sink;
    }
    RunAndCheck(host);
  }
}

TEST_P(NumberCase, BiasMaskAlibiAndSinks) {
  for (const bool heads : {false, true}) {
    for (const bool rows : {false, true}) {
      for (const bool keys : {false, true}) {
        const ScoreAxes axes{heads, rows, keys};
        RunAndCheck(Spec({{.q_len = 40, .kv_len = 150, .bias = axes, .bias_infinities = rows},
                          {.q_len = 40, .kv_len = 150, .bias = axes, .bias_is_fp32 = true, .mask = axes},
                          {.q_len = 40,
                           .kv_len = 150,
                           .q_padding = 3,
                           .kv_padding = 5,
                           .q_heads = 6,
                           .bias = ScoreAxes{},
                           .mask = axes,
                           .alibi = true,
                           .sinks = true,
                           .weights = AllWeights()}}));
      }
    }
  }
}

// Masks of many models are finite: the lowest float.
TEST_P(NumberCase, TheLowestFiniteBiasIsNotMasked) {
  // Scores are equal but for the bias: the lowest float for all keys of row 0, for even ones of row 1, for
  // none of row 2.
  ProblemSpec spec{.q_len = 3,
                   .kv_len = 90,
                   .fill = Fill::kConstant,
                   .constant = 0.5f,
                   .bias = ScoreAxes{},
                   .bias_is_fp32 = true,
                   .weights = AllWeights()};
  std::vector<ProblemSpec> specs = {spec};
  spec.weights = Weights::kRows;
  spec.weight_rows = {0, 1, 2};
  specs.push_back(spec);
  HostLaunch host(Spec(specs));
  for (size_t i = 0; i < specs.size(); ++i) {
    const Problem& p = host.problems()[i];
    float* bias = HostLaunch::Mutable(static_cast<const float*>(p.bias));
    for (int64_t key = 0; key < 90; ++key) {
      for (int64_t h = 0; h < p.kv_heads; ++h) host.FillV(i, h, key, static_cast<float>(key));
      for (int64_t h = 0; h < p.q_heads; ++h) {
        for (int64_t row = 0; row < 3; ++row) {
          const bool lowest = row == 0 || (row == 1 && key % 2 == 0);
          bias[h * p.bias_strides.head + row * p.bias_strides.row + key] =
              lowest ? std::numeric_limits<float>::lowest() : 0.0f;
        }
      }
    }
  }
  RunAndCheck(host);
  EXPECT_NEAR(host.Out(0, 0, 0, 0), 44.5f, 0.25f);
  EXPECT_NEAR(host.Out(0, 0, 1, 0), 45.0f, 0.25f);
  EXPECT_NEAR(host.Out(0, 0, 2, 0), 44.5f, 0.25f);
  EXPECT_EQ(host.Lse(0, 0, 0), -kBiasMax);
}

TEST_P(NumberCase, Alibi) {
  RunAndCheck(
      Spec({{.q_len = 100, .kv_len = 100, .q_heads = 8, .causal = Causal::kBottomRight, .alibi = true},
            {.q_len = 100, .kv_len = 60, .q_heads = 4, .alibi = true},
            {.q_len = 1, .kv_len = 900, .q_heads = 4, .alibi = true},
            {.q_len = 60, .kv_len = 100, .causal = Causal::kTopLeft, .alibi = true}}));
}

TEST_P(NumberCase, AccurateAtEveryLength) {
  for (const int64_t len : {1, 64, 256, 1024, 2048}) {
    RunAndCheck(Spec({{.q_len = 130, .kv_len = len, .q_heads = 1, .kv_heads = 1}}));
  }
}

TEST_P(NumberCase, AccurateWithOutliers) {
  RunAndCheck(Spec({{.q_len = 128, .kv_len = 1000, .q_heads = 1, .kv_heads = 1, .fill = Fill::kOutliers},
                    {.q_len = 200, .kv_len = 200, .fill = Fill::kOutliers, .causal = Causal::kBottomRight},
                    {.q_len = 2, .kv_len = 3000, .fill = Fill::kOutliers}}));
  for (const int32_t dim : {128, 256}) {
    RunAndCheck(
        Spec({{.q_len = 128, .kv_len = 500, .q_heads = 1, .kv_heads = 1, .fill = Fill::kOutliers}}, dim));
  }
}

TEST_P(NumberCase, AccurateWithLargeScores) {
  RunAndCheck(
      Spec({{.q_len = 128, .kv_len = 500, .scale = 1.0f}, {.q_len = 2, .kv_len = 1500, .scale = 1.0f}}));
}

}  // namespace
}  // namespace attend::test
