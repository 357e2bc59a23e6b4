// The contract, swept: head_dims one by one, then random launches that mix everything.
#include <algorithm>
#include <cstdlib>

#include "tests/kernels/cases/kernel_case.h"

namespace attend::test {
namespace {

using SweepCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, SweepCase, ::testing::ValuesIn(AllParams()), ParamName);

TEST_P(SweepCase, EveryHeadDim) {
  for (int32_t dim = 8; dim <= kHeadDimMax; dim += 8) {
    RunAndCheck(
        Spec({{.q_len = 35, .kv_len = 99, .q_heads = 2, .kv_heads = 1, .causal = Causal::kBottomRight},
              {.q_len = 1, .kv_len = 300, .q_heads = 2, .kv_heads = 1}},
             dim));
  }
}

TEST_P(SweepCase, ValueHeadDimDiffers) {
  for (const auto& [dim, v_dim] : std::vector<std::pair<int32_t, int32_t>>{
           {8, 256}, {256, 8}, {64, 128}, {128, 64}, {192, 128}, {96, 72}, {40, 200}, {72, 80}}) {
    RunAndCheck(
        Spec({{.q_len = 70, .kv_len = 140, .q_heads = 2, .kv_heads = 1, .causal = Causal::kBottomRight},
              {.q_len = 2, .kv_len = 600, .q_heads = 2, .kv_heads = 1}},
             dim, v_dim));
  }
}

TEST_P(SweepCase, FewQueriesAgainstManyKeys) {
  for (const int64_t q_len : {1, 2, 3, 8, 16}) {
    for (const int32_t q_heads : {1, 4, 8}) {
      RunAndCheck(Spec({{.q_len = q_len, .kv_len = 1, .q_heads = q_heads, .kv_heads = 1},
                        {.q_len = q_len,
                         .kv_len = 2049,
                         .q_heads = q_heads,
                         .kv_heads = 1,
                         .causal = Causal::kBottomRight},
                        {.q_len = q_len,
                         .kv_len = 1500,
                         .q_heads = q_heads,
                         .kv_heads = 1,
                         .causal = Causal::kBottomRight,
                         .window_left = 600}},
                       128));
    }
  }
}

ProblemSpec RandomProblem(Kernel kernel, std::mt19937_64& random) {
  const auto below = [&random](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const auto one_in = [&below](int64_t n) { return below(n) == 0; };
  const auto length = [&] {
    const int64_t edges[] = {1, 16, 31, 32, 33, 63, 64, 65, 80, 96, 112, 127, 128, 129, 176, 192, 255, 257};
    return one_in(2) ? edges[below(18)] : below(200);
  };
  ProblemSpec p;
  p.q_len = one_in(4) ? below(4) : length();
  p.kv_len = one_in(4) ? below(1500) : length();
  if (one_in(3)) p.q_padding = below(40);
  if (one_in(3)) p.kv_padding = below(40);
  p.kv_heads = static_cast<int32_t>(1 + below(3));
  p.q_heads = p.kv_heads * static_cast<int32_t>(1 + below(5));
  if (p.q_len * p.kv_len > 20000) p.q_heads = p.kv_heads = 1 + static_cast<int32_t>(below(2));
  p.axes = static_cast<Axes>(below(3));
  p.wild_strides = one_in(4);
  if (one_in(6)) p.scale = static_cast<float>(below(9) - 4) * 0.05f;
  if (one_in(5)) p.softcap = 0.5f + static_cast<float>(below(30));
  p.causal = static_cast<Causal>(below(3));
  if (one_in(3)) p.window_left = below(150);
  if (one_in(3)) p.window_right = below(150);
  const auto axes = [&] { return ScoreAxes{one_in(2), one_in(2), one_in(2)}; };
  if (one_in(4)) p.bias = axes();
  p.bias_is_fp32 = one_in(2);
  p.bias_infinities = one_in(2);
  if (one_in(4)) p.mask = axes();
  p.alibi = one_in(5);
  p.sinks = one_in(4);
  if (one_in(4)) p.page_tokens = 16 << below(5);
  if (p.page_tokens > 0) p.kv_padding = 0;
  p.lse = !one_in(4);
  if (one_in(4)) {
    p.weights = kernel != Kernel::kFlash && one_in(2) ? Weights::kAll : Weights::kRows;
    for (int64_t i = 0; p.weights == Weights::kRows && i <= below(4); ++i) {
      p.weight_rows.push_back(below(std::max<int64_t>(1, p.q_len + p.q_padding)));
    }
    if (p.weights == Weights::kRows && p.weight_rows.empty()) p.weights = Weights::kNone;
  }
  return p;
}

// ATTEND_TEST_LAUNCHES launches (default 40), fresh each time.
TEST_P(SweepCase, RandomLaunches) {
  const char* given = std::getenv("ATTEND_TEST_LAUNCHES");
  const int launches = given != nullptr ? std::atoi(given) : 40;
  std::mt19937_64 random = FreshRandom();
  const int32_t dims[] = {8, 16, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256};
  for (int i = 0; i < launches && !HasFailure(); ++i) {
    const int32_t dim = dims[random() % 12];
    LaunchSpec spec = Spec({}, dim, random() % 3 == 0 ? dims[random() % 12] : dim);
    spec.partial = random() % 5 == 0;
    const uint64_t problems = 1 + random() % 4;
    for (uint64_t p = 0; p < problems; ++p) spec.problems.push_back(RandomProblem(kernel(), random));
    RunAndCheck(spec);
  }
}

}  // namespace
}  // namespace attend::test
