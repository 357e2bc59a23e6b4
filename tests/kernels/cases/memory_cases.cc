// How tensors lie in memory, and what else is asked for: layouts, pages, weights.
#include "tests/kernels/cases/kernel_case.h"

namespace attend::test {
namespace {

using MemoryCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, MemoryCase, ::testing::ValuesIn(AllParams()), ParamName);

TEST_P(MemoryCase, Axes) {
  for (const Axes axes : {Axes::kHeadsFirst, Axes::kTokensFirst, Axes::kGaps}) {
    for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
      RunAndCheck(
          Spec({{.q_len = 65,
                 .kv_len = 129,
                 .q_padding = 3,
                 .kv_padding = 2,
                 .q_heads = 4,
                 .kv_heads = 2,
                 .axes = axes,
                 .causal = causal},
                {.q_len = 1, .kv_len = 700, .q_heads = 4, .kv_heads = 2, .axes = axes, .causal = causal}}));
    }
  }
}

TEST_P(MemoryCase, Pages) {
  for (const int32_t tokens : {16, 32, 64, 128, 256}) {
    for (const Axes axes : {Axes::kHeadsFirst, Axes::kTokensFirst}) {
      ProblemSpec prefill{.q_len = 90, .kv_len = 333, .q_heads = 4, .kv_heads = 2, .axes = axes};
      prefill.causal = Causal::kBottomRight;
      prefill.page_tokens = tokens;
      ProblemSpec decode = prefill;
      decode.q_len = 1;
      decode.kv_len = 1000;
      ProblemSpec window = prefill;
      window.window_left = 70;
      window.sinks = true;
      window.weights = AllWeights();
      ProblemSpec exact = prefill;  // ends with a page
      exact.kv_len = 512;
      ProblemSpec small = decode;
      small.q_len = 3;
      small.kv_len = 5;
      ProblemSpec none = decode;
      none.kv_len = 0;
      RunAndCheck(Spec({prefill, decode, window, exact, small, none}));
    }
  }
  RunAndCheck(Spec({{.q_len = 90, .kv_len = 333, .axes = Axes::kGaps, .page_tokens = 16}}, 128, 72));
}

TEST_P(MemoryCase, PagedAndNotInOneLaunch) {
  RunAndCheck(Spec({{.q_len = 1, .kv_len = 500, .q_heads = 8, .page_tokens = 64},
                    {.q_len = 1, .kv_len = 500, .q_heads = 8},
                    {.q_len = 50, .kv_len = 500, .q_heads = 8, .page_tokens = 16}}));
}

TEST_P(MemoryCase, WeightsOfChosenRows) {
  const std::vector<int64_t> rows = {69, 0, 7, 7, 68};
  ProblemSpec p{.q_len = 70, .kv_len = 130, .q_heads = 4, .weights = Weights::kRows, .weight_rows = rows};
  ProblemSpec causal = p;
  causal.causal = Causal::kBottomRight;
  causal.window_left = 50;
  causal.kv_padding = 9;
  ProblemSpec everything = causal;
  everything.softcap = 2.0f;
  everything.bias = ScoreAxes{};
  everything.mask = ScoreAxes{};
  everything.alibi = true;
  everything.sinks = true;
  ProblemSpec padded = p;  // rows 68 and 69 are not there
  padded.q_len = 20;
  padded.q_padding = 50;
  padded.causal = Causal::kBottomRight;
  ProblemSpec decode = p;
  decode.q_len = 1;
  decode.kv_len = 900;
  decode.lse = false;  // not asked for, and yet needed
  decode.weight_rows = {0};
  ProblemSpec empty = p;
  empty.kv_len = 0;
  empty.kv_padding = 5;
  ProblemSpec paged = causal;
  paged.kv_padding = 0;
  paged.page_tokens = 32;
  RunAndCheck(Spec({p, causal, everything, padded, decode, empty, paged}));
}

TEST_P(MemoryCase, WeightsOfAllRows) {
  if (kernel() == Kernel::kFlash) {
    HostLaunch host(Spec({{.q_len = 4, .kv_len = 4, .weights = Weights::kAll}}));
    const absl::Status status = runner().Run(host.launch(), host.regions());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return;
  }
  RunAndCheck(Spec({{.q_len = 129, .kv_len = 257, .q_heads = 4, .weights = Weights::kAll},
                    {.q_len = 129,
                     .kv_len = 257,
                     .q_padding = 3,
                     .kv_padding = 4,
                     .causal = Causal::kTopLeft,
                     .window_left = 40,
                     .sinks = true,
                     .weights = Weights::kAll},
                    {.q_len = 1, .kv_len = 600, .weights = Weights::kAll}}));
}

}  // namespace
}  // namespace attend::test
