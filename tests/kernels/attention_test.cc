#include "kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/reference.h"

namespace attend {
namespace {

using ::testing::HasSubstr;

Problem Sized(int64_t q_len, int64_t kv_len, Causal causal = Causal::kNone, int64_t left = kUnbounded,
              int64_t right = kUnbounded) {
  Problem p;
  p.q_len = p.q_len_padded = q_len;
  p.kv_len = p.kv_len_padded = kv_len;
  p.q_heads = p.kv_heads = 1;
  p.causal = causal;
  p.window_left = left;
  p.window_right = right;
  return p;
}

// Every small combination, against pair-by-pair definitions.
template <typename Check>
void ForEachSmallProblem(const Check& check) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight, Causal::kTopLeft}) {
    for (const int64_t left : {kUnbounded, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{20}, INT64_MAX}) {
      for (const int64_t right : {kUnbounded, int64_t{0}, int64_t{2}, int64_t{20}, INT64_MAX}) {
        for (const int64_t q_len : {0, 1, 2, 5, 9}) {
          for (const int64_t kv_len : {0, 1, 2, 6, 11}) check(Sized(q_len, kv_len, causal, left, right));
        }
      }
    }
  }
}

TEST(VisibleKeysTest, RangeOfARowHoldsExactlyTheKeysItMaySee) {
  ForEachSmallProblem([](const Problem& p) {
    for (int64_t row = 0; row < p.q_len; ++row) {
      const KeyRange range = VisibleKeys(p, row);
      ASSERT_GE(range.begin, 0);
      ASSERT_LE(range.begin, range.end);
      ASSERT_LE(range.end, p.kv_len);
      for (int64_t key = 0; key < p.kv_len; ++key) {
        ASSERT_EQ(key >= range.begin && key < range.end, test::MaySee(p, 0, row, key)) << row << " " << key;
      }
    }
  });
}

TEST(VisibleKeysTest, RangeOfRowsIsTheSmallestThatHoldsEach) {
  ForEachSmallProblem([](const Problem& p) {
    for (int64_t begin = 0; begin < p.q_len; ++begin) {
      for (int64_t end = begin + 1; end <= p.q_len; ++end) {
        int64_t first = INT64_MAX, last = -1;
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t key = 0; key < p.kv_len; ++key) {
            if (!test::MaySee(p, 0, row, key)) continue;
            first = std::min(first, key);
            last = std::max(last, key);
          }
        }
        const KeyRange range = VisibleKeys(p, begin, end);
        if (last < 0) {
          ASSERT_EQ(range.begin, range.end);
        } else {
          ASSERT_EQ(range.begin, first);
          ASSERT_EQ(range.end, last + 1);
        }
      }
    }
  });
}

TEST(VisiblePairsTest, CountsPairs) {
  ForEachSmallProblem([](const Problem& p) {
    int64_t pairs = 0;
    for (int64_t row = 0; row < p.q_len; ++row) {
      for (int64_t key = 0; key < p.kv_len; ++key) pairs += test::MaySee(p, 0, row, key);
    }
    ASSERT_EQ(VisiblePairs(p), pairs) << p.q_len << " " << p.kv_len << " " << static_cast<int>(p.causal)
                                      << " " << p.window_left << " " << p.window_right;
  });
}

TEST(VisiblePairsTest, LongSequencesByFormula) {
  const int64_t n = int64_t{1} << 30;
  EXPECT_EQ(VisiblePairs(Sized(n, n, Causal::kBottomRight)), n * (n + 1) / 2);
  EXPECT_EQ(VisiblePairs(Sized(n, n)), n * n);
  EXPECT_EQ(VisiblePairs(Sized(n, n, Causal::kBottomRight, 0)), n);
  EXPECT_EQ(VisiblePairs(Sized(n, n, Causal::kNone, INT64_MAX, INT64_MAX)), n * n);
  EXPECT_EQ(VisiblePairs(Sized(1, int64_t{1} << 62, Causal::kBottomRight)), int64_t{1} << 62);
}

TEST(VisibleKeysTest, WindowsNearTheEndOfInt64DoNotOverflow) {
  const KeyRange range = VisibleKeys(Sized(3, 1000, Causal::kNone, INT64_MAX, INT64_MAX), 0, 3);
  EXPECT_EQ(range.begin, 0);
  EXPECT_EQ(range.end, 1000);
  const KeyRange top = VisibleKeys(Sized(1000, 3, Causal::kTopLeft, INT64_MAX - 1, INT64_MAX), 999);
  EXPECT_EQ(top.begin, 0);
  EXPECT_EQ(top.end, 3);
}

class CheckLaunchTest : public ::testing::Test {
 protected:
  CheckLaunchTest() {
    launch_.head_dim = launch_.v_head_dim = 64;
    problem_ = Sized(4, 8);
    problem_.q = problem_.k = problem_.v = memory_;
    problem_.out = memory_;
  }
  absl::Status Check() {
    launch_.problems = {&problem_, 1};
    return CheckLaunch(launch_);
  }
  void ExpectInvalid(const std::string& what) {
    const absl::Status s = Check();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(s.message()), HasSubstr(what));
  }
  Launch launch_;
  Problem problem_;
  float memory_[1] = {};
  int32_t table_[1] = {};
};

TEST_F(CheckLaunchTest, AcceptsWhatIsValid) { EXPECT_TRUE(Check().ok()) << Check(); }

TEST_F(CheckLaunchTest, AcceptsNullTensorsWhereNothingIsRead) {
  problem_ = Sized(0, 8);
  EXPECT_TRUE(Check().ok()) << Check();
  problem_ = Sized(4, 0);
  problem_.q = problem_.out = memory_;
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(CheckLaunchTest, AcceptsNoProblems) {
  launch_.problems = {};
  EXPECT_TRUE(CheckLaunch(launch_).ok());
}

TEST_F(CheckLaunchTest, RefusesAuto) {
  launch_.kernel = Kernel::kAuto;
  ExpectInvalid("kernel");
}

TEST_F(CheckLaunchTest, RefusesHeadDims) {
  for (const int32_t dim : {0, 4, 12, 257, 264, -8}) {
    launch_.head_dim = dim;
    ExpectInvalid("head_dim is " + std::to_string(dim));
    launch_.head_dim = 64;
    launch_.v_head_dim = dim;
    ExpectInvalid("v_head_dim is " + std::to_string(dim));
    launch_.v_head_dim = 64;
  }
}

TEST_F(CheckLaunchTest, RefusesHeads) {
  problem_.kv_heads = 0;
  ExpectInvalid("problems[0].kv_heads");
  problem_.kv_heads = 2;
  problem_.q_heads = 3;
  ExpectInvalid("3 is not a multiple of kv_heads 2");
  problem_.q_heads = 0;
  ExpectInvalid("q_heads");
}

TEST_F(CheckLaunchTest, RefusesLengths) {
  problem_.q_len = -1;
  ExpectInvalid("q_len");
  problem_.q_len = 5;
  ExpectInvalid("q_len_padded");
  problem_.q_len = 4;
  problem_.kv_len = -3;
  ExpectInvalid("lengths");
}

TEST_F(CheckLaunchTest, RefusesNumbers) {
  problem_.scale = NAN;
  ExpectInvalid("scale");
  problem_.scale = INFINITY;
  ExpectInvalid("scale");
  problem_.scale = 0.0f;
  EXPECT_TRUE(Check().ok());
  problem_.scale = -1.0f;
  EXPECT_TRUE(Check().ok());
  problem_.softcap = -1.0f;
  ExpectInvalid("softcap");
  problem_.softcap = INFINITY;
  ExpectInvalid("softcap");
}

TEST_F(CheckLaunchTest, RefusesWindows) {
  problem_.window_left = -2;
  ExpectInvalid("window_left");
  problem_.window_left = 0;
  problem_.window_right = -7;
  ExpectInvalid("window_right");
}

TEST_F(CheckLaunchTest, RefusesMissingTensors) {
  problem_.v = nullptr;
  ExpectInvalid("k or v is null");
  problem_.v = memory_;
  problem_.q = nullptr;
  ExpectInvalid("].q: is null");
  problem_.q = memory_;
  problem_.out = nullptr;
  ExpectInvalid("].out");
  problem_.out = memory_;
  launch_.partial = true;
  ExpectInvalid("lse: is required by a partial launch");
}

TEST_F(CheckLaunchTest, RefusesPageSizes) {
  problem_.pages.table = table_;
  for (const int32_t tokens : {0, 8, 48, 512}) {
    problem_.pages.tokens = tokens;
    ExpectInvalid("pages.tokens");
  }
  problem_.pages.tokens = 256;
  EXPECT_TRUE(Check().ok());
}

TEST_F(CheckLaunchTest, FlashRefusesAllWeightsAndSaysWhatToDo) {
  problem_.weights = memory_;
  ExpectInvalid("use NAIVE or ONLINE");
  launch_.kernel = Kernel::kOnline;
  EXPECT_TRUE(Check().ok());
  problem_.kv_len_padded = 7;
  ExpectInvalid("kv_len_padded");
}

TEST_F(CheckLaunchTest, NamesTheProblem) {
  std::vector<Problem> problems = {problem_, problem_};
  problems[1].kv_heads = 0;
  launch_.problems = problems;
  EXPECT_THAT(std::string(CheckLaunch(launch_).message()), HasSubstr("problems[1].kv_heads"));
}

TEST(ResolveKernelTest, AutoIsFlashUnlessAllWeightsAreWanted) {
  EXPECT_EQ(ResolveKernel(Kernel::kAuto, false), Kernel::kFlash);
  EXPECT_EQ(ResolveKernel(Kernel::kAuto, true), Kernel::kNaive);
  EXPECT_EQ(ResolveKernel(Kernel::kOnline, true), Kernel::kOnline);
}

}  // namespace
}  // namespace attend
