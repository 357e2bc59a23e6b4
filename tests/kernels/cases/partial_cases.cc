// Partial states and their merge; bits that depend on the problem alone (case K3, and K22 and K23 across
// splits).
#include <cmath>
#include <vector>

#include "kernels/merge.h"
#include "tests/kernels/cases/kernel_case.h"
#include "tests/kernels/host_float.h"

namespace attend::test {
namespace {

using PartialCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, PartialCase, ::testing::ValuesIn(AllParams()), ParamName);

// A row of heads' states, [heads * rows, dim], contiguous, as MergePartials takes them.
struct State {
  std::vector<float> out;
  std::vector<float> lse;
};

State Collect(const HostLaunch& host, size_t problem) {
  const Problem& p = host.launch().problems[problem];
  State s;
  for (int64_t h = 0; h < p.q_heads; ++h) {
    for (int64_t i = 0; i < p.q_len; ++i) {
      s.lse.push_back(host.Lse(problem, h, i));
      for (int64_t d = 0; d < host.launch().v_head_dim; ++d) s.out.push_back(host.Out(problem, h, i, d));
    }
  }
  return s;
}

TEST_P(PartialCase, PartialIgnoresSinks) {
  LaunchSpec spec = Spec({{.q_len = 70, .kv_len = 150, .sinks = true},
                          {.q_len = 3, .kv_len = 0, .sinks = true},
                          {.q_len = 1, .kv_len = 1500, .q_heads = 4, .sinks = true},
                          {.q_len = 40, .kv_len = 20, .causal = Causal::kBottomRight, .sinks = true}});
  spec.partial = true;
  RunAndCheck(spec);
}

TEST_P(PartialCase, K3_MergeOfNothingIsNothing) {
  LaunchSpec spec = Spec({{.q_len = 5, .kv_len = 0}, {.q_len = 5, .kv_len = 0}});
  spec.partial = true;
  HostLaunch host(spec);
  RunAndCheck(host);
  const State a = Collect(host, 0), b = Collect(host, 1);
  const std::vector<PartialState> parts = {{a.out.data(), a.lse.data()}, {b.out.data(), b.lse.data()}};
  std::vector<float> out(a.out.size(), NAN), lse(a.lse.size(), NAN);
  ASSERT_TRUE(MergePartials(parts, static_cast<int64_t>(lse.size()), 64, DataType::kFp32, nullptr, out.data(),
                            lse.data())
                  .ok());
  for (const float x : out) EXPECT_EQ(x, 0.0f);
  for (const float x : lse) EXPECT_EQ(x, -INFINITY);
}

// Keys cut at odd places, one part empty: merged, they give what one launch over all keys gives.
TEST_P(PartialCase, PartsMergeToTheWhole) {
  const ProblemSpec whole{.q_len = 33, .kv_len = 300, .axes = Axes::kTokensFirst, .sinks = true};
  HostLaunch host(Spec({whole}));
  Run(host);
  const Problem& p = host.problems()[0];
  const std::vector<int64_t> cuts = {0, 1, 1, 130, 300};
  LaunchSpec part_spec = Spec({});
  part_spec.partial = true;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    part_spec.problems.push_back({.q_len = 33, .kv_len = cuts[i + 1] - cuts[i], .axes = Axes::kTokensFirst});
  }
  HostLaunch parts(part_spec);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 64; ++d) {
        for (int64_t r = 0; r < 33; ++r) {
          parts.SetQ(i, h, r, d, Load(p.q, dtype(), r * p.q_strides.token + h * p.q_strides.head + d));
        }
        for (int64_t j = cuts[i]; j < cuts[i + 1]; ++j) {
          parts.SetK(i, h, j - cuts[i], d,
                     Load(p.k, dtype(), j * p.k_strides.token + h * p.k_strides.head + d));
          parts.SetV(i, h, j - cuts[i], d,
                     Load(p.v, dtype(), j * p.v_strides.token + h * p.v_strides.head + d));
        }
      }
    }
  }
  RunAndCheck(parts);
  std::vector<State> states;
  std::vector<PartialState> views;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) states.push_back(Collect(parts, i));
  for (const State& s : states) views.push_back({s.out.data(), s.lse.data()});
  std::vector<float> sinks;
  for (int64_t h = 0; h < 2; ++h) sinks.insert(sinks.end(), 33, p.sinks[h]);
  std::vector<float> out(66 * 64), lse(66);
  ASSERT_TRUE(MergePartials(views, 66, 64, DataType::kFp32, sinks.data(), out.data(), lse.data()).ok());
  const double bound = dtype() == DataType::kFp32 ? 2e-6 : dtype() == DataType::kFp16 ? 4e-3 : 3e-2;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t r = 0; r < 33; ++r) {
      EXPECT_NEAR(lse[h * 33 + r], host.Lse(0, h, r), dtype() == DataType::kFp32 ? 1e-5 : 1e-3);
      for (int64_t d = 0; d < 64; ++d) {
        EXPECT_NEAR(out[(h * 33 + r) * 64 + d], host.Out(0, h, r, d), bound) << h << " " << r << " " << d;
      }
    }
  }
}

TEST_P(PartialCase, BitsAloneAreBitsInACrowd) {
  std::vector<ProblemSpec> crowd;
  std::mt19937_64 random = FreshRandom();
  for (int i = 0; i < 24; ++i) {
    ProblemSpec p;
    p.q_len = i % 3 == 0 ? 1 : static_cast<int64_t>(random() % 200);
    p.kv_len = static_cast<int64_t>(random() % (i % 4 == 0 ? 3000 : 300));
    p.kv_heads = 1 + static_cast<int32_t>(random() % 3);
    p.q_heads = p.kv_heads * (1 + static_cast<int32_t>(random() % 4));
    p.causal = static_cast<Causal>(random() % 3);
    if (i % 5 == 0) p.window_left = 64;
    crowd.push_back(p);
  }
  for (const int32_t head_dim : {64, 128}) {
    HostLaunch host(Spec(crowd, head_dim));
    Run(host);
    std::vector<std::vector<uint8_t>> together;
    for (size_t i = 0; i < crowd.size(); ++i) together.push_back(host.Bits(i));
    host.PoisonOutputs();
    for (size_t i = 0; i < crowd.size(); ++i) {
      const absl::Status status = runner().Run(host.Only(i), host.regions());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(host.Bits(i), together[i]) << "problem " << i << " of seed " << Seed();
    }
    // And in another order.
    std::vector<Problem> reversed(host.problems().rbegin(), host.problems().rend());
    Launch launch = host.launch();
    launch.problems = reversed;
    host.PoisonOutputs();
    const absl::Status status = runner().Run(launch, host.regions());
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < crowd.size(); ++i) EXPECT_EQ(host.Bits(i), together[i]) << "problem " << i;
  }
}

}  // namespace
}  // namespace attend::test
