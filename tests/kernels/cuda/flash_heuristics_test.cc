// How FLASH groups and cuts problems: properties that must hold for every problem, tested without a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/flash/groups.h"
#include "kernels/cuda/flash/heuristics.h"

namespace attend::cuda::flash {
namespace {

Problem ProblemOf(int64_t q_len, int64_t kv_len, int32_t q_heads, int32_t kv_heads) {
  Problem p;
  p.q_len = p.q_len_padded = q_len;
  p.kv_len = p.kv_len_padded = kv_len;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  return p;
}

Launch LaunchOf(int32_t head_dim, int32_t v_head_dim) {
  Launch launch;
  launch.dtype = DataType::kBf16;
  launch.head_dim = head_dim;
  launch.v_head_dim = v_head_dim;
  return launch;
}

TEST(FlashHeuristicsTest, HeadDimsFallIntoTheSmallestClassThatHoldsBoth) {
  EXPECT_EQ(HeadDimClass(8, 8), 64);
  EXPECT_EQ(HeadDimClass(64, 72), 96);
  EXPECT_EQ(HeadDimClass(104, 64), 128);
  EXPECT_EQ(HeadDimClass(192, 128), 192);
  EXPECT_EQ(HeadDimClass(200, 8), 256);
}

TEST(FlashHeuristicsTest, SplitsCoverEveryVisibleKeyAndNoneIsEmpty) {
  for (const Path path : {Path::kPrefill, Path::kDecode}) {
    for (const int32_t dim : {8, 64, 96, 128, 192, 256}) {
      for (const int64_t q_len : {1, 7, 100, 3000}) {
        for (const int64_t kv_len : {1, 63, 64, 65, 4096, 100001, 3000000}) {
          for (const int64_t window : {kUnbounded, int64_t{0}, int64_t{1000}}) {
            Problem p = ProblemOf(q_len, kv_len, 8, 2);
            p.causal = Causal::kBottomRight;
            p.window_left = window;
            const Launch launch = LaunchOf(dim, dim);
            const Cut cut = CutProblem(path, launch, p);
            const TileShape tile = TileOf(path, HeadDimClass(dim, dim), false);
            const KeyRange visible = VisibleKeys(p, 0, q_len);
            EXPECT_EQ(cut.keys_begin % tile.keys, 0);
            EXPECT_EQ(cut.split_keys % tile.keys, 0);
            EXPECT_GE(cut.row_tiles * tile.rows, PackedRows(p));
            EXPECT_LT((cut.row_tiles - 1) * tile.rows, PackedRows(p));
            EXPECT_LE(cut.keys_begin, visible.begin);
            EXPECT_GE(cut.keys_begin + cut.splits * cut.split_keys, visible.end);
            if (visible.begin < visible.end) {
              EXPECT_LT(cut.keys_begin + (cut.splits - 1) * cut.split_keys, visible.end);
            }
          }
        }
      }
    }
  }
}

TEST(FlashHeuristicsTest, ALongDecodeAloneFillsAnH200InOneWave) {
  // Three CTAs at head_dim 128 on each of 132 multiprocessors, two at 256.
  for (const auto& [dim, slots] : {std::pair{128, 396}, {256, 264}}) {
    for (const int32_t kv_heads : {8, 32}) {
      const int64_t kv_len = (int64_t{512} << 20) / (kv_heads * dim * 4);
      const Cut cut = CutProblem(Path::kDecode, LaunchOf(dim, dim), ProblemOf(1, kv_len, 32, kv_heads));
      EXPECT_GE(cut.splits * kv_heads, slots * 9 / 10) << dim << " " << kv_heads;
      EXPECT_LE(cut.splits * kv_heads, slots) << dim << " " << kv_heads;
    }
  }
}

TEST(FlashHeuristicsTest, ABatchOfAPowerOfTwoSequencesIsWholeWaves) {
  for (const auto& [dim, slots] : {std::pair{128, 396}, {256, 264}}) {
    for (const int64_t batch : {16, 32, 64}) {
      for (const int64_t kv_len : {4096, 8192}) {
        const Cut cut = CutProblem(Path::kDecode, LaunchOf(dim, dim), ProblemOf(1, kv_len, 32, 8));
        const int64_t ctas = batch * 8 * cut.splits;
        const int64_t waves = (ctas + slots - 1) / slots;
        EXPECT_GE(ctas, waves * slots * 9 / 10) << dim << " " << batch << " " << kv_len;
      }
    }
  }
}

TEST(FlashHeuristicsTest, AShortDecodeAloneStillRunsOnManyMultiprocessors) {
  for (const int64_t kv_len : {1024, 4096, 16384}) {
    EXPECT_GE(CutProblem(Path::kDecode, LaunchOf(128, 128), ProblemOf(1, kv_len, 32, 8)).splits * 8, 24)
        << kv_len;
  }
}

TEST(FlashHeuristicsTest, ADecodeSplitReadsBetween64KilobytesAndTwoMegabytesButForItsTile) {
  for (const int64_t kv_len : {100, 1000, 10000, 1000000, 10000000}) {
    const Cut cut = CutProblem(Path::kDecode, LaunchOf(128, 128), ProblemOf(1, kv_len, 8, 1));
    EXPECT_LE(cut.split_keys * 512, (2048 + 32) << 10) << kv_len;
    if (cut.splits > 1) {
      EXPECT_GE(cut.split_keys * 512, 32 << 10) << kv_len;
    }
  }
}

TEST(FlashHeuristicsTest, PrefillThatFillsAChipIsNotSplit) {
  EXPECT_EQ(CutProblem(Path::kPrefill, LaunchOf(64, 64), ProblemOf(4096, 4096, 8, 8)).splits, 1);
  EXPECT_GT(CutProblem(Path::kPrefill, LaunchOf(64, 64), ProblemOf(128, 65536, 8, 8)).splits, 4);
}

TEST(FlashHeuristicsTest, AWindowIsCutByWhatItShows) {
  Problem p = ProblemOf(1, 1 << 20, 8, 1);
  p.causal = Causal::kBottomRight;
  p.window_left = 1023;
  const Cut cut = CutProblem(Path::kDecode, LaunchOf(128, 128), p);
  EXPECT_GE(cut.keys_begin, (1 << 20) - 1024 - 64);
  EXPECT_LE(cut.splits * cut.split_keys, 1024 + 2 * 128);
}

// A batch of four sequences in one tensor of fp16, head_dim 64.
class FlashGroupsTest : public ::testing::Test {
 protected:
  FlashGroupsTest() {
    for (int64_t i = 0; i < 4; ++i) {
      Problem p = ProblemOf(1, 100, 8, 2);
      p.q = base_ + i * 1024;
      p.k = base_ + 65536 + i * 25600;
      p.v = base_ + 262144 + i * 25600;
      p.out = base_ + 524288 + i * 1024;
      problems_.push_back(p);
    }
  }
  std::vector<int64_t> Counts() const {
    std::vector<const Problem*> pointers;
    for (const Problem& p : problems_) pointers.push_back(&p);
    std::vector<int64_t> counts;
    for (const Group& g : GroupProblems(pointers)) counts.push_back(g.count);
    return counts;
  }
  alignas(16) char base_[1 << 20];
  std::vector<Problem> problems_;
};

TEST_F(FlashGroupsTest, ADenseBatchIsOneGroup) {
  EXPECT_EQ(Counts(), std::vector<int64_t>{4});
  std::vector<const Problem*> pointers;
  for (const Problem& p : problems_) pointers.push_back(&p);
  const Distances d = GroupProblems(pointers).front().distances;
  EXPECT_EQ(d.q, 1024);
  EXPECT_EQ(d.k, 25600);
  EXPECT_EQ(d.v, 25600);
  EXPECT_EQ(d.out, 1024);
  EXPECT_EQ(d.lse, 0);
  EXPECT_EQ(d.page_table, 0);
}

TEST_F(FlashGroupsTest, RowsOfOnePageTableAreOneGroup) {
  const std::vector<int32_t> table(4 * 7);
  for (size_t i = 0; i < problems_.size(); ++i) {
    problems_[i].k = problems_[i].v = base_;
    problems_[i].pages = {table.data() + 7 * i, 16, 1024, 1024};
  }
  EXPECT_EQ(Counts(), std::vector<int64_t>{4});
}

TEST_F(FlashGroupsTest, AnotherLengthOrDistanceOrSinkStartsAGroup) {
  problems_[1].kv_len = 99;
  EXPECT_EQ(Counts(), (std::vector<int64_t>{1, 1, 2}));
  problems_[1].kv_len = 100;
  problems_[3].v = base_;
  EXPECT_EQ(Counts(), (std::vector<int64_t>{3, 1}));
  const float sinks[8] = {};
  problems_[0].sinks = sinks;
  EXPECT_EQ(Counts(), (std::vector<int64_t>{1, 2, 1}));
}

TEST_F(FlashGroupsTest, ADistanceThatLosesAlignmentStartsAGroup) {
  for (int64_t i = 0; i < 4; ++i) problems_[i].k = base_ + 65536 + i * 25602;
  EXPECT_EQ(Counts(), (std::vector<int64_t>{1, 1, 1, 1}));
}

}  // namespace
}  // namespace attend::cuda::flash
