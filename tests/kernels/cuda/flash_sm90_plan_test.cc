// How FLASH for Hopper makes kernel launches of problems: host code, tested without a GPU.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention.h"
#include "kernels/call.h"
#include "kernels/cuda/flash/sm90/plan.h"

namespace attend::cuda::sm90 {
namespace {

// Never dereferenced.
const void* Address(uintptr_t at) { return reinterpret_cast<const void*>(at); }

// A dense batch, [batch, 4 heads, length, 128], at made-up addresses.
std::vector<Problem> DenseBatch(int64_t batch, int64_t length, Causal causal = Causal::kNone) {
  Call call;
  call.kernel = Kernel::kFlash;
  call.dtype = DataType::kBf16;
  call.batch = batch;
  call.q_heads = call.kv_heads = 4;
  call.head_dim = call.v_head_dim = 128;
  call.q_len = call.kv_len = length;
  call.causal = causal;
  CallTensors tensors;
  tensors.q = Address(0x10000000);
  tensors.k = Address(0x20000000);
  tensors.v = Address(0x30000000);
  tensors.out = const_cast<void*>(Address(0x40000000));
  return MakeProblems(call, tensors);
}

Launch LaunchOf(const std::vector<Problem>& problems, int32_t head_dim = 128) {
  Launch launch;
  launch.dtype = DataType::kBf16;
  launch.head_dim = launch.v_head_dim = head_dim;
  launch.problems = problems;
  return launch;
}

TEST(FlashSm90PlanTest, DenseBatchIsOneBatch) {
  const std::vector<Problem> problems = DenseBatch(7, 300);
  const std::vector<KernelLaunch> plan = PlanLaunches(LaunchOf(problems));
  ASSERT_EQ(plan.size(), 1u);
  ASSERT_EQ(plan[0].batches.size(), 1u);
  EXPECT_EQ(plan[0].batches[0].count, 7);
  EXPECT_EQ(plan[0].batches[0].k_bytes, 4 * 300 * 128 * 2);
  EXPECT_EQ(plan[0].items, 7 * 4 * 3);  // tiles of 128 rows
}

TEST(FlashSm90PlanTest, UnequalDistancesAndLengthsPartBatches) {
  std::vector<Problem> problems = DenseBatch(4, 300);
  problems[2].k = Address(0x50000000);
  problems[3].kv_len = 299;
  const std::vector<KernelLaunch> plan = PlanLaunches(LaunchOf(problems));
  ASSERT_EQ(plan.size(), 1u);
  ASSERT_EQ(plan[0].batches.size(), 3u);
  EXPECT_EQ(plan[0].batches[0].count, 2);
}

TEST(FlashSm90PlanTest, LongestBatchComesFirst) {
  std::vector<Problem> problems = DenseBatch(2, 300);
  problems[1].kv_len = 310;
  const std::vector<KernelLaunch> plan = PlanLaunches(LaunchOf(problems));
  ASSERT_EQ(plan[0].batches.size(), 2u);
  EXPECT_EQ(plan[0].batches[0].first->kv_len, 310);
}

TEST(FlashSm90PlanTest, ScoresThatArePassedThroughSomethingHaveAKernelOfTheirOwn) {
  std::vector<Problem> problems = DenseBatch(4, 4096);
  problems[1].softcap = 2.0f;
  problems[2].scale = -1.0f;
  problems[3].scale = 0.0f;
  const std::vector<KernelLaunch> plan = PlanLaunches(LaunchOf(problems));
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].kind, TileKind::kWide);
  EXPECT_EQ(plan[1].kind, TileKind::kModified);
  EXPECT_EQ(plan[1].batches.size(), 3u);
}

TEST(FlashSm90PlanTest, MaskIsWhatHidesAKey) {
  Problem p = DenseBatch(1, 100)[0];
  EXPECT_FALSE(IsMasked(p));
  p.window_left = 99;
  p.window_right = 99;
  EXPECT_FALSE(IsMasked(p));
  p.window_left = 98;
  EXPECT_TRUE(IsMasked(p));
  p.window_left = kUnbounded;
  p.causal = Causal::kBottomRight;
  EXPECT_TRUE(IsMasked(p));
  p.q_len = 1;  // sees all
  EXPECT_FALSE(IsMasked(p));
  p.causal = Causal::kTopLeft;
  EXPECT_TRUE(IsMasked(p));
}

TEST(FlashSm90PlanTest, TilesAreAFunctionOfTheProblemAlone) {
  std::vector<Problem> problems = DenseBatch(1, 4096);
  problems.push_back(DenseBatch(1, 4096, Causal::kBottomRight)[0]);
  const Launch crowd = LaunchOf(problems);
  const std::vector<Problem> alone = {problems[1]};
  EXPECT_EQ(TileOf(crowd, problems[1]), TileOf(LaunchOf(alone), alone[0]));
  EXPECT_NE(TileOf(crowd, problems[0]), TileOf(crowd, problems[1]));
}

TEST(FlashSm90PlanTest, WideTilesOnlyWhereTheyWasteLittle) {
  const std::vector<Problem> few = DenseBatch(1, 512);     // 640 keys of wide tiles
  const std::vector<Problem> many = DenseBatch(1, 16384);  // 16,480
  EXPECT_EQ(TileOf(LaunchOf(few), few[0]).keys, 128);
  EXPECT_EQ(TileOf(LaunchOf(many), many[0]).keys, 160);
}

TEST(FlashSm90PlanTest, FewRowsHaveATileOfFewRows) {
  const auto rows = [](int64_t length, Causal causal, int32_t head_dim) {
    const std::vector<Problem> problems = DenseBatch(1, length, causal);
    return TileOf(LaunchOf(problems, head_dim), problems[0]).rows();
  };
  EXPECT_EQ(rows(256, Causal::kNone, 64), 64);
  EXPECT_EQ(rows(1024, Causal::kNone, 64), 64);  // 4 heads: 64 items
  EXPECT_EQ(rows(1025, Causal::kNone, 64), 192);
  EXPECT_EQ(rows(4096, Causal::kBottomRight, 64), 192);
  std::vector<Problem> heads = DenseBatch(1, 1024, Causal::kBottomRight);
  EXPECT_EQ(TileOf(LaunchOf(heads, 64), heads[0]).rows(), 64);
  heads[0].q_heads = 32;
  EXPECT_EQ(TileOf(LaunchOf(heads, 64), heads[0]).rows(), 192);
}

TEST(FlashSm90PlanTest, HalfEmptyTilesAndFewItemsHaveATileOfFewRowsAtHeadDim128) {
  const auto rows = [](int64_t q_len, int64_t kv_len, int32_t heads) {
    Problem p = DenseBatch(1, kv_len)[0];
    p.q_len = q_len;
    p.q_heads = heads;
    const std::vector<Problem> problems = {p};
    return TileOf(LaunchOf(problems), p).rows();
  };
  EXPECT_EQ(rows(64, 64, 32), 64);
  EXPECT_EQ(rows(1, 2048, 32), 64);
  EXPECT_EQ(rows(64, 2049, 32), 128);
  EXPECT_EQ(rows(65, 65, 32), 128);
  EXPECT_EQ(rows(128, 128, 8), 64);
  EXPECT_EQ(rows(128, 129, 8), 128);
  EXPECT_EQ(rows(128, 128, 9), 128);
  EXPECT_EQ(rows(192, 256, 32), 64);
  EXPECT_EQ(rows(192, 257, 32), 128);
  EXPECT_EQ(rows(193, 193, 32), 128);
}

TEST(FlashSm90PlanTest, SectionsHoldWhatTheCacheKeeps) {
  const Problem full = DenseBatch(1, 16384)[0];
  const Problem causal = DenseBatch(1, 16384, Causal::kBottomRight)[0];
  const std::vector<Problem> problems = {full, causal};
  const Launch launch = LaunchOf(problems);
  EXPECT_EQ(SectionHeads(launch, full, 4), 1);
  EXPECT_EQ(SectionHeads(launch, causal, 4), 2);  // 8 MB of K and V each
}

}  // namespace
}  // namespace attend::cuda::sm90
