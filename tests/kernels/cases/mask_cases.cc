// Masks, windows, ragged lengths: what each row may see (cases K1, K2, K4, K5, K7, K8, K14 to K16, K18
// to K21).
#include <cmath>

#include "tests/kernels/cases/kernel_case.h"

namespace attend::test {
namespace {

using MaskCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, MaskCase, ::testing::ValuesIn(AllParams()), ParamName);

TEST_P(MaskCase, K1_MoreQueriesThanKeysLeavesTheFirstRowsEmpty) {
  HostLaunch host(
      Spec({{.q_len = 128, .kv_len = 64, .causal = Causal::kBottomRight, .weights = AllWeights()}}));
  RunAndCheck(host);
  for (int64_t row = 0; row < 64; ++row) {
    EXPECT_EQ(host.Out(0, 0, row, 0), 0.0f);
    EXPECT_EQ(host.Lse(0, 0, row), -INFINITY);
  }
  EXPECT_TRUE(std::isfinite(host.Lse(0, 0, 64)));
}

TEST_P(MaskCase, K1_TopLeft) {
  RunAndCheck(Spec({{.q_len = 128, .kv_len = 64, .causal = Causal::kTopLeft},
                    {.q_len = 64, .kv_len = 200, .causal = Causal::kTopLeft, .weights = AllWeights()}}));
}

TEST_P(MaskCase, K2_NoKeys) {
  HostLaunch host(Spec({{.q_len = 5, .kv_len = 0},
                        {.q_len = 5, .kv_len = 0, .kv_padding = 7, .weights = AllWeights()},
                        {.q_len = 3, .kv_len = 9}}));
  host.problems()[0].k = nullptr;
  host.problems()[0].v = nullptr;
  RunAndCheck(host);
  EXPECT_EQ(host.Out(0, 1, 4, 63), 0.0f);
  EXPECT_EQ(host.Lse(0, 1, 4), -INFINITY);
}

TEST_P(MaskCase, K4_RaggedLengthsInPoisonedPadding) {
  RunAndCheck(
      Spec({{.q_len = 1, .kv_len = 1, .q_padding = 2, .kv_padding = 2, .weights = AllWeights()},
            {.q_len = 3, .kv_len = 3, .weights = AllWeights()},
            {.q_len = 3, .kv_len = 1, .q_padding = 5, .kv_padding = 100, .axes = Axes::kTokensFirst}}));
}

TEST_P(MaskCase, K5_UsedLengthsOfAPaddedBatch) {
  std::vector<ProblemSpec> problems;
  for (const int64_t len : {32, 64, 96, 48}) {
    problems.push_back({.q_len = len, .kv_len = len, .q_padding = 128 - len, .kv_padding = 128 - len});
    problems.push_back({.q_len = len,
                        .kv_len = len,
                        .q_padding = 128 - len,
                        .kv_padding = 128 - len,
                        .causal = Causal::kBottomRight,
                        .sinks = true,
                        .weights = AllWeights()});
  }
  RunAndCheck(Spec(problems));
}

TEST_P(MaskCase, K7_RowWhoseMaskIsAllFalse) {
  HostLaunch host(Spec({{.q_len = 70, .kv_len = 130, .mask = ScoreAxes{}, .weights = AllWeights()}}));
  const Problem& p = host.problems()[0];
  for (int64_t head = 0; head < 2; ++head) {
    for (const int64_t row : {0, 17, 69}) {
      for (int64_t j = 0; j < 130; ++j) {
        HostLaunch::Mutable(p.mask)[head * p.mask_strides.head + row * p.mask_strides.row + j] = 0;
      }
    }
  }
  RunAndCheck(host);
  EXPECT_EQ(host.Out(0, 1, 17, 5), 0.0f);
  EXPECT_EQ(host.Lse(0, 1, 17), -INFINITY);
}

TEST_P(MaskCase, K8_FirstKeyTilesWhollyMasked) {
  HostLaunch host(
      Spec({{.q_len = 88,
             .kv_len = 448,
             .q_heads = 7,
             .kv_heads = 1,
             .causal = Causal::kBottomRight,
             .mask = ScoreAxes{.heads = false, .rows = false}},
            {.q_len = 88,
             .kv_len = 448,
             .q_heads = 7,
             .kv_heads = 1,
             .causal = Causal::kBottomRight,
             .window_left = 20},
            {.q_len = 88, .kv_len = 448, .q_heads = 7, .kv_heads = 1, .causal = Causal::kBottomRight}}));
  for (int64_t j = 0; j < 200; ++j) HostLaunch::Mutable(host.problems()[0].mask)[j] = 0;
  // The last tiles too, whichever end a kernel starts from.
  for (int64_t j = 290; j < 448; ++j) HostLaunch::Mutable(host.problems()[0].mask)[j] = 0;
  RunAndCheck(host);
}

TEST_P(MaskCase, K14_NothingToDo) {
  RunAndCheck(Spec({}));
  RunAndCheck(Spec({{.q_len = 0, .kv_len = 64}}));
  RunAndCheck(Spec({{.q_len = 0, .kv_len = 0, .q_padding = 4}}));
  RunAndCheck(Spec({{.q_len = 0, .kv_len = 64, .q_padding = 3, .kv_padding = 1, .weights = AllWeights()}}));
}

TEST_P(MaskCase, K15_SizesOfOneHaveAnyStride) {
  RunAndCheck(Spec({{.q_len = 77, .kv_len = 90, .q_heads = 3, .kv_heads = 1, .wild_strides = true},
                    {.q_len = 1, .kv_len = 90, .wild_strides = true},
                    {.q_len = 1, .kv_len = 1, .q_heads = 1, .kv_heads = 1, .wild_strides = true},
                    {.q_len = 40,
                     .kv_len = 1,
                     .q_heads = 2,
                     .kv_heads = 1,
                     .axes = Axes::kTokensFirst,
                     .wild_strides = true}}));
}

TEST_P(MaskCase, K16_RaggedDecodeWithEmptySequences) {
  std::vector<ProblemSpec> problems;
  for (const int64_t q_len : {0, 1, 0, 1, 1, 0, 1}) {
    const int64_t i = static_cast<int64_t>(problems.size());
    problems.push_back({.q_len = q_len,
                        .kv_len = 50 + 61 * i,
                        .q_padding = 1 - q_len,
                        .q_heads = 8,
                        .kv_heads = 2,
                        .causal = Causal::kBottomRight});
  }
  RunAndCheck(Spec(problems));
}

TEST_P(MaskCase, K18_KeyRangeOfATileSpansAllItsRows) {
  RunAndCheck(Spec({{.q_len = 300, .kv_len = 4096, .q_heads = 1, .kv_heads = 1, .window_left = 333}}));
  RunAndCheck(Spec({{.q_len = 300,
                     .kv_len = 1100,
                     .q_heads = 1,
                     .kv_heads = 1,
                     .window_left = 33,
                     .window_right = 70,
                     .weights = AllWeights()}}));
}

TEST_P(MaskCase, K19_WindowCountsKeysBeforeTheQuery) {
  // A model's window of 5 tokens, the query's own among them, is window_left = 4.
  HostLaunch host(Spec({{.q_len = 20, .kv_len = 20, .causal = Causal::kBottomRight, .window_left = 4}}));
  host.FillV(0, 0, 10, 0.0f);
  for (int64_t j = 0; j < 20; ++j) host.FillV(0, 0, j, j == 10 ? 1.0f : 0.0f);
  RunAndCheck(host);
  EXPECT_EQ(host.Out(0, 0, 9, 0), 0.0f);
  EXPECT_GT(host.Out(0, 0, 10, 0), 0.0f);
  EXPECT_GT(host.Out(0, 0, 14, 0), 0.0f);
  EXPECT_EQ(host.Out(0, 0, 15, 0), 0.0f);
}

TEST_P(MaskCase, K19_WindowOfOneKeyReturnsItsValue) {
  HostLaunch host(Spec({{.q_len = 70, .kv_len = 100, .window_left = 0, .window_right = 0}}));
  RunAndCheck(host);
}

TEST_P(MaskCase, WindowsNearTheEndOfInt64) {
  const int64_t huge = INT64_MAX;
  RunAndCheck(Spec({{.q_len = 30, .kv_len = 70, .window_left = huge, .window_right = huge},
                    {.q_len = 70, .kv_len = 30, .window_left = huge - 1, .window_right = huge - 1},
                    {.q_len = 70, .kv_len = 30, .causal = Causal::kTopLeft, .window_left = huge}}));
}

TEST_P(MaskCase, K20_OddRatiosOfHeads) {
  for (const int32_t ratio : {2, 3, 5, 7, 12}) {
    RunAndCheck(Spec({{.q_len = 33, .kv_len = 130, .q_heads = 2 * ratio, .kv_heads = 2},
                      {.q_len = 1,
                       .kv_len = 700,
                       .q_heads = 2 * ratio,
                       .kv_heads = 2,
                       .axes = Axes::kTokensFirst,
                       .causal = Causal::kBottomRight}}));
  }
}

TEST_P(MaskCase, K21_LengthsAroundTileEdges) {
  std::vector<ProblemSpec> problems;
  for (const int64_t len : {64, 65, 127, 129, 1, 63, 31, 33, 15, 17, 8}) {
    problems.push_back({.q_len = len, .kv_len = len, .causal = Causal::kBottomRight});
    problems.push_back({.q_len = len, .kv_len = len, .q_heads = 1, .kv_heads = 1});
    problems.push_back(
        {.q_len = 65, .kv_len = len, .q_heads = 1, .kv_heads = 1, .causal = Causal::kBottomRight});
    problems.push_back(
        {.q_len = len, .kv_len = 129, .q_heads = 1, .kv_heads = 1, .causal = Causal::kBottomRight});
  }
  RunAndCheck(Spec(problems));
}

}  // namespace
}  // namespace attend::test
