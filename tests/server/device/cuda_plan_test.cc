// Host arithmetic of the GPU device: what is copied, and how long launches are cut.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/cuda/batch_plan.h"
#include "server/device/cuda/launch_split.h"
#include "tests/kernels/host_launch.h"
#include "tests/kernels/reference.h"
#include "tests/server/device/call_fixture.h"

namespace attend::test {
namespace {

using server::BatchPlan;
using server::HeadSlice;
using server::MoveTensors;
using server::PlanBatch;
using server::PredictNs;
using server::SplitLaunch;

TEST(BatchPlan, ARequestsInputsTravelInOneCopyAndItsOutputsInAnother) {
  const TestCall a(SmallCall(2, 33)), b(SmallCall(1, 5));
  const server::BatchItem items[] = {a.item(), b.item()};
  const BatchPlan plan = PlanBatch(items);
  EXPECT_EQ(plan.in.size(), 2u);
  EXPECT_EQ(plan.out.size(), 2u);
  EXPECT_LE(plan.bytes, server::TensorDeviceBytes(a.call()) + server::TensorDeviceBytes(b.call()));
}

TEST(BatchPlan, TensorsKeepTheirAlignmentAndDoNotOverlap) {
  const TestCall a(SmallCall(3, 7)), b(SmallCall(1, 64));
  const server::BatchItem items[] = {a.item(), b.item()};
  const BatchPlan plan = PlanBatch(items);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  const TestCall* calls[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    const server::TensorOffsets& t = plan.tensors[i];
    const Call& c = calls[i]->call();
    for (auto [offset, bytes] : {std::pair{t.q, c.q_bytes()},
                                 {t.k, c.k_bytes()},
                                 {t.v, c.v_bytes()},
                                 {t.out, c.out_bytes()},
                                 {t.lse, c.lse_bytes()}}) {
      EXPECT_EQ(offset % 256, 0);
      ranges.emplace_back(offset, offset + bytes);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  EXPECT_LE(ranges.back().second, plan.bytes);
}

TEST(BatchPlan, TensorsThatLieApartTravelApart) {
  const TestCall a(SmallCall(1, 16)), elsewhere(SmallCall(1, 16));
  CallTensors tensors = a.tensors();
  tensors.v = elsewhere.tensors().v;
  const server::BatchItem items[] = {{&a.call(), &tensors}};
  const BatchPlan plan = PlanBatch(items);
  EXPECT_EQ(plan.in.size(), 2u);
  int64_t bytes = 0;
  for (const server::CopyRange& copy : plan.in) bytes += copy.bytes;
  EXPECT_LT(bytes, 4 * a.call().q_bytes());
}

TEST(BatchPlan, AbsentTensorsStayNull) {
  const TestCall a(SmallCall(1, 4));
  const server::BatchItem items[] = {a.item()};
  alignas(256) std::byte base[256];
  const CallTensors placed = server::AtAddress(PlanBatch(items).tensors[0], base);
  EXPECT_EQ(placed.bias, nullptr);
  EXPECT_EQ(placed.mask, nullptr);
  EXPECT_EQ(placed.sinks, nullptr);
  EXPECT_EQ(placed.weights, nullptr);
  EXPECT_NE(placed.q, nullptr);
}

// Every feature that is addressed by head, for slices to get right.
LaunchSpec RichSpec() {
  LaunchSpec spec{.kernel = Kernel::kNaive, .dtype = DataType::kBf16, .head_dim = 16, .v_head_dim = 24};
  spec.problems.push_back({.q_len = 9,
                           .kv_len = 21,
                           .q_padding = 2,
                           .kv_padding = 3,
                           .q_heads = 12,
                           .kv_heads = 4,
                           .axes = Axes::kGaps,
                           .causal = Causal::kBottomRight,
                           .bias = ScoreAxes{},
                           .mask = ScoreAxes{},
                           .alibi = true,
                           .sinks = true,
                           .weights = Weights::kAll});
  return spec;
}

TEST(HeadSlice, ComputesTheSameHeadsAsTheWhole) {
  const HostLaunch host(RichSpec());
  const Launch& launch = host.launch();
  const Problem& whole = launch.problems[0];
  const Expected right = Reference(launch, whole);
  for (int32_t begin = 0; begin < 4; ++begin) {
    for (int32_t count = 1; begin + count <= 4; ++count) {
      const Problem slice = HeadSlice(whole, launch, begin, count);
      ASSERT_EQ(slice.q_heads, 3 * count);
      const Expected part = Reference(launch, slice);
      for (int64_t row = 0; row < whole.q_len_padded; ++row) {
        for (int64_t h = 0; h < slice.q_heads; ++h) {
          for (int64_t d = 0; d < 24; ++d) {
            ASSERT_EQ(part.out[(row * slice.q_heads + h) * 24 + d],
                      right.out[(row * 12 + 3 * begin + h) * 24 + d]);
          }
          ASSERT_EQ(part.lse[h * whole.q_len_padded + row],
                    right.lse[(3 * begin + h) * whole.q_len_padded + row]);
        }
      }
      // Outputs of the slice are addressed where the whole has them.
      EXPECT_EQ(slice.lse - whole.lse, 3 * begin * whole.lse_head_stride);
      EXPECT_EQ(slice.weights - whole.weights, 3 * begin * whole.weights_head_stride);
      EXPECT_EQ(static_cast<const char*>(slice.out) - static_cast<const char*>(whole.out),
                3 * begin * whole.out_strides.head * 2);
    }
  }
}

TEST(MoveTensors, MovesEveryTensorThatThereIs) {
  std::byte memory[128] = {};
  const auto at = [&memory](int i) -> void* { return memory + i * 8; };
  Problem p;
  p.q = at(0), p.k = at(1), p.v = at(2), p.out = at(3), p.lse = static_cast<float*>(at(4));
  p.bias = at(5), p.mask = static_cast<uint8_t*>(at(6)), p.alibi_slopes = static_cast<float*>(at(7));
  p.sinks = static_cast<float*>(at(8)), p.weights = static_cast<float*>(at(9));
  p.weight_rows = static_cast<int64_t*>(at(10));
  const auto by16 = [](std::byte* tensor) { return tensor + 16; };
  MoveTensors(by16, &p);
  EXPECT_THAT(
      (std::vector<const void*>{p.q, p.k, p.v, p.out, p.lse, p.bias, p.mask, p.alibi_slopes, p.sinks,
                                p.weights, p.weight_rows}),
      testing::ElementsAre(at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11), at(12)));
  Problem none;
  MoveTensors(by16, &none);
  EXPECT_EQ(none.bias, nullptr);
  EXPECT_EQ(none.weights, nullptr);
}

TEST(SplitLaunch, PartsHoldEveryHeadOnceAndTakeNoLongerThanTheLimit) {
  const TestCall big(SmallCall(3, 300, 16));
  const std::vector<Problem> problems = MakeProblems(big.call(), big.tensors());
  const Launch launch = MakeLaunch(big.call(), problems);
  const int64_t one_head = PredictNs(launch, HeadSlice(problems[0], launch, 0, 1), 4);
  const int64_t limit = 3 * one_head;
  const auto parts = SplitLaunch(launch, 4, limit);
  EXPECT_GT(parts.size(), 3u);
  std::set<const void*> heads;
  for (const std::vector<Problem>& part : parts) {
    int64_t ns = 0;
    for (const Problem& p : part) {
      ns += PredictNs(launch, p, 4);
      for (int32_t h = 0; h < p.kv_heads; ++h) EXPECT_TRUE(heads.insert(HeadSlice(p, launch, h, 1).q).second);
    }
    // A slice predicts a launch of its own, whose fixed part the whole's share does not have.
    EXPECT_LE(ns, limit + 5000 * static_cast<int64_t>(part.size()));
  }
  EXPECT_EQ(heads.size(), 48u);
}

TEST(SplitLaunch, AShortLaunchStaysWhole) {
  const TestCall call(SmallCall(4, 8));
  const std::vector<Problem> problems = MakeProblems(call.call(), call.tensors());
  const auto parts = SplitLaunch(MakeLaunch(call.call(), problems), 100, 2'000'000);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].size(), 4u);
}

TEST(SplitLaunch, ARequestIsCutAlikeAloneAndInACrowd) {
  const TestCall a(SmallCall(1, 200, 8)), b(SmallCall(5, 60, 8));
  const std::vector<Problem> alone = MakeProblems(a.call(), a.tensors());
  std::vector<Problem> crowd = MakeProblems(b.call(), b.tensors());
  crowd.insert(crowd.begin() + 2, alone.begin(), alone.end());
  const Launch launch = MakeLaunch(a.call(), alone);
  Launch crowded = launch;
  crowded.problems = crowd;
  const int64_t limit = PredictNs(launch, alone[0], 4) / 3;
  const auto cuts = [&](const std::vector<std::vector<Problem>>& parts) {
    std::vector<std::pair<const void*, int32_t>> slices;
    for (const auto& part : parts) {
      for (const Problem& p : part) {
        if (p.q_len == 200) slices.emplace_back(p.q, p.kv_heads);
      }
    }
    return slices;
  };
  EXPECT_GT(cuts(SplitLaunch(launch, 4, limit)).size(), 1u);
  EXPECT_EQ(cuts(SplitLaunch(launch, 4, limit)), cuts(SplitLaunch(crowded, 4, limit)));
}

}  // namespace
}  // namespace attend::test
