// Dispatch is host code: what it chooses is tested on described devices, without a GPU.
#include "kernels/cuda/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attend::cuda {
namespace {

using ::testing::HasSubstr;

constexpr DeviceProperties kH200{90, 132, 232448};
constexpr DeviceProperties kA10{86, 72, 101376};

// Two made-up variants: a fast one for long problems on Hopper, and one for everything.
bool OnlyHopper(const Launch&, const Problem&, const DeviceProperties& d) {
  return d.compute_capability == 90;
}
bool LongOnes(const Launch&, const Problem& p, const DeviceProperties&) { return p.q_len >= 64; }
bool NoFp32(const Launch& l, const Problem&, const DeviceProperties&) { return l.dtype != DataType::kFp32; }
WorkspaceNeed NoBytes(const Launch&, const DeviceProperties&) { return {}; }
TileShape AnyTile(const Launch&, const DeviceProperties&) { return {}; }
absl::Status DoNothing(const Launch&, const DeviceProperties&, const Workspace&, Stream) {
  return absl::OkStatus();
}
const Variant kTable[] = {
    {"fast", "compute capability 9.0", OnlyHopper, LongOnes, NoBytes, AnyTile, DoNothing},
    {"plain", "fp16, bf16", NoFp32, nullptr, NoBytes, AnyTile, DoNothing},
};

Problem Lengths(int64_t q_len, int64_t kv_len) {
  Problem p;
  p.q_len = p.q_len_padded = q_len;
  p.kv_len = kv_len;
  p.q_heads = p.kv_heads = 1;
  return p;
}

Launch LaunchOf(std::span<const Problem> problems, DataType dtype = DataType::kFp16) {
  Launch launch;
  launch.dtype = dtype;
  launch.head_dim = launch.v_head_dim = 64;
  launch.problems = problems;
  return launch;
}

std::string Chosen(const Problem& problem, const DeviceProperties& device, absl::string_view forced = "",
                   DataType dtype = DataType::kFp16) {
  auto variant = Choose(LaunchOf({}, dtype), problem, device, kTable, forced);
  return variant.ok() ? std::string((*variant)->name) : variant.status().ToString();
}

TEST(DispatchTest, TakesTheFirstVariantThatWantsTheProblem) {
  EXPECT_EQ(Chosen(Lengths(64, 64), kH200), "fast");
  EXPECT_EQ(Chosen(Lengths(8, 64), kH200), "plain");
  EXPECT_EQ(Chosen(Lengths(64, 64), kA10), "plain");
}

TEST(DispatchTest, TakesAVariantThatOnlyCanWhenNoneWants) {
  EXPECT_EQ(Chosen(Lengths(8, 64), kH200, "", DataType::kFp32), "fast");
}

TEST(DispatchTest, ForcedVariantIsTheOnlyOne) {
  EXPECT_EQ(Chosen(Lengths(64, 64), kH200, "plain"), "plain");
  EXPECT_EQ(Chosen(Lengths(8, 64), kH200, "fast"), "fast");
}

TEST(DispatchTest, UnimplementedNamesWhatIsSupported) {
  auto variant = Choose(LaunchOf({}, DataType::kFp32), Lengths(64, 64), kA10, kTable, "");
  EXPECT_EQ(variant.status().code(), absl::StatusCode::kUnimplemented);
  const std::string message(variant.status().message());
  EXPECT_THAT(message, HasSubstr("flash fp32 with head_dim 64, v_head_dim 64 on compute capability 8.6"));
  EXPECT_THAT(message, HasSubstr("fast (compute capability 9.0); plain (fp16, bf16)"));
}

TEST(DispatchTest, PartitionKeepsOrderAndLeavesEmptyProblemsOut) {
  const std::vector<Problem> problems = {Lengths(8, 10),  Lengths(64, 11), Lengths(0, 12),
                                         Lengths(65, 13), Lengths(7, 0),   Lengths(9, 14)};
  auto subs = Partition(LaunchOf(problems), kH200, kTable, "");
  ASSERT_TRUE(subs.ok()) << subs.status();
  ASSERT_EQ(subs->size(), 2u);
  EXPECT_EQ((*subs)[0].variant->name, "fast");
  ASSERT_EQ((*subs)[0].problems.size(), 2u);
  EXPECT_EQ((*subs)[0].problems[0].kv_len, 11);
  EXPECT_EQ((*subs)[0].problems[1].kv_len, 13);
  EXPECT_EQ((*subs)[1].variant->name, "plain");
  ASSERT_EQ((*subs)[1].problems.size(), 2u);
  EXPECT_EQ((*subs)[1].problems[0].kv_len, 10);
  EXPECT_EQ((*subs)[1].problems[1].kv_len, 14);
}

// Batch invariance: what a problem is launched with does not change the kernel that it gets.
TEST(DispatchTest, ChoiceDoesNotDependOnTheCrowd) {
  std::vector<Problem> crowd;
  for (int64_t q_len = 1; q_len < 200; ++q_len) crowd.push_back(Lengths(q_len, 64));
  auto subs = Partition(LaunchOf(crowd), kH200, kTable, "");
  ASSERT_TRUE(subs.ok());
  for (const SubLaunch& sub : *subs) {
    for (const Problem& p : sub.problems) EXPECT_EQ(Chosen(p, kH200), sub.variant->name);
  }
}

}  // namespace
}  // namespace attend::cuda
