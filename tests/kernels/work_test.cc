// The counts by hand: one problem of 100 x 200, two query heads on one KV head, d 64, v 32, fp16, walked in
// tiles of 64 x 64.
#include "kernels/work.h"

#include <gtest/gtest.h>

namespace attend {
namespace {

constexpr int64_t kScores = 2 * 100 * 200 * 4;
constexpr int64_t kQ = 100 * 2 * 64 * 2, kK = 200 * 64 * 2, kV = 200 * 32 * 2, kOut = 100 * 2 * 32 * 2;
constexpr TileShape kTile{64, 64};

class WorkTest : public ::testing::Test {
 protected:
  WorkTest() {
    launch_.dtype = DataType::kFp16;
    launch_.head_dim = 64;
    launch_.v_head_dim = 32;
    p_.q_len = p_.q_len_padded = 100;
    p_.kv_len = p_.kv_len_padded = 200;
    p_.q_heads = 2;
    p_.kv_heads = 1;
  }
  WorkCount Count(Kernel kernel) {
    launch_.kernel = kernel;
    launch_.problems = {&p_, 1};
    return CountWork(launch_, kTile);
  }
  Launch launch_;
  Problem p_;
  float memory_[1] = {};
};

TEST_F(WorkTest, FlashCarriesInputsAndOutputsOnce) {
  const WorkCount w = Count(Kernel::kFlash);
  EXPECT_EQ(w.flops, 2 * 100 * 200 * 2 * (64 + 32));
  EXPECT_EQ(w.read_bytes, kQ + kK + kV);
  EXPECT_EQ(w.write_bytes, kOut);
  EXPECT_EQ(w.scratch_bytes, 0);
}

TEST_F(WorkTest, FlashTilesReadKeysOncePerQueryTileAndHead) {
  // Two tiles of queries for each of two heads.
  EXPECT_EQ(Count(Kernel::kFlash).tile_bytes, kQ + 2 * 2 * (kK + kV));
}

TEST_F(WorkTest, FlashCorrectsOutputAndDenominatorAfterEachTileButTheFirst) {
  const WorkCount w = Count(Kernel::kFlash);
  EXPECT_EQ(w.corrections, 2 * 100 * 3);  // 200 keys are four tiles
  EXPECT_EQ(w.correction_flops, w.corrections * (1 + 32));
}

TEST_F(WorkTest, OnlineWritesScoresOnceAndReadsThemTwice) {
  const WorkCount w = Count(Kernel::kOnline);
  EXPECT_EQ(w.read_bytes, kQ + kK + kV + 2 * kScores);
  EXPECT_EQ(w.write_bytes, kOut + kScores);
  EXPECT_EQ(w.scratch_bytes, kScores);
  EXPECT_EQ(w.corrections, 2 * 100 * 3);
  EXPECT_EQ(w.correction_flops, w.corrections);
}

TEST_F(WorkTest, NaiveReadsScoresFiveTimesAndWritesThemThrice) {
  const WorkCount w = Count(Kernel::kNaive);
  EXPECT_EQ(w.read_bytes, kQ + kK + kV + 5 * kScores);
  EXPECT_EQ(w.write_bytes, kOut + 3 * kScores);
  EXPECT_EQ(w.scratch_bytes, kScores);
  EXPECT_EQ(w.corrections, 0);
  EXPECT_EQ(w.correction_flops, 0);
}

TEST_F(WorkTest, CausalHalvesTheFlops) {
  p_.kv_len = p_.kv_len_padded = 100;
  p_.causal = Causal::kBottomRight;
  EXPECT_EQ(Count(Kernel::kFlash).flops, 2 * (100 * 101 / 2) * 2 * (64 + 32));
}

TEST_F(WorkTest, WindowCarriesOnlyTheKeysThatSomeRowSees) {
  p_.q_len = p_.q_len_padded = 1;
  p_.causal = Causal::kBottomRight;
  p_.window_left = 49;
  EXPECT_EQ(Count(Kernel::kFlash).read_bytes, 1 * 2 * 64 * 2 + 50 * (64 + 32) * 2);
  EXPECT_EQ(Count(Kernel::kFlash).flops, 2 * 50 * 2 * (64 + 32));
}

TEST_F(WorkTest, BroadcastBiasAndMaskCountOnce) {
  const WorkCount plain = Count(Kernel::kFlash);
  p_.bias = memory_;
  p_.bias_strides = {0, 200, 1};
  EXPECT_EQ(Count(Kernel::kFlash).read_bytes - plain.read_bytes, 100 * 200 * 2);
  p_.bias_is_fp32 = true;
  EXPECT_EQ(Count(Kernel::kFlash).read_bytes - plain.read_bytes, 100 * 200 * 4);
  p_.bias = nullptr;
  p_.mask = reinterpret_cast<const uint8_t*>(memory_);
  p_.mask_strides = {200, 0, 1};
  EXPECT_EQ(Count(Kernel::kFlash).read_bytes - plain.read_bytes, 2 * 200);
}

TEST_F(WorkTest, OutputsAskedForAreWritten) {
  p_.lse = memory_;
  EXPECT_EQ(Count(Kernel::kFlash).write_bytes, kOut + 2 * 100 * 4);
  launch_.partial = true;
  EXPECT_EQ(Count(Kernel::kFlash).write_bytes, 2 * kOut + 2 * 100 * 4);
  launch_.partial = false;
  p_.lse = nullptr;
  p_.weights = memory_;
  EXPECT_EQ(Count(Kernel::kNaive).write_bytes, kOut + 3 * kScores + kScores);
}

TEST_F(WorkTest, NothingToDoCountsNothing) {
  p_.q_len = p_.q_len_padded = 0;
  for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash}) {
    const WorkCount w = Count(kernel);
    EXPECT_EQ(w.flops + w.read_bytes + w.write_bytes + w.tile_bytes + w.corrections, 0);
  }
}

TEST_F(WorkTest, ProblemsAddUp) {
  const WorkCount one = Count(Kernel::kOnline);
  const Problem two[] = {p_, p_};
  launch_.problems = two;
  const WorkCount both = CountWork(launch_, kTile);
  EXPECT_EQ(both.flops, 2 * one.flops);
  EXPECT_EQ(both.read_bytes, 2 * one.read_bytes);
  EXPECT_EQ(both.tile_bytes, 2 * one.tile_bytes);
  EXPECT_EQ(both.corrections, 2 * one.corrections);
}

}  // namespace
}  // namespace attend
