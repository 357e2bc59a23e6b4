// What holds of the CPU kernels beyond the cases that every device answers to.
#include "kernels/cpu/cpu_attention.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/host_launch.h"

namespace attend::test {
namespace {

constexpr Kernel kKernels[] = {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash};

void RunOn(const Launch& launch, int threads) {
  cpu::ThreadPool pool(threads);
  const int64_t bytes = cpu::WorkspaceBytes(launch, threads);
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                              &std::free);
  const absl::Status status = cpu::Run(launch, workspace.get(), bytes, pool);
  ASSERT_TRUE(status.ok()) << status;
}

TEST(CpuAttentionTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Kernel kernel : kKernels) {
    LaunchSpec spec{.kernel = kernel, .dtype = DataType::kBf16};
    spec.problems = {{.q_len = 200, .kv_len = 300, .q_heads = 6, .causal = Causal::kBottomRight},
                     {.q_len = 1, .kv_len = 5000, .q_heads = 8},
                     {.q_len = 3, .kv_len = 40}};
    HostLaunch host(spec);
    RunOn(host.launch(), 1);
    std::vector<std::vector<uint8_t>> alone;
    for (size_t i = 0; i < 3; ++i) alone.push_back(host.Bits(i));
    for (const int threads : {2, 5}) {
      host.PoisonOutputs();
      RunOn(host.launch(), threads);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(host.Bits(i), alone[i]) << threads << " threads, problem " << i;
    }
  }
}

// Null tensors do: WorkspaceBytes does not read them.
Launch Shape(Kernel kernel, Problem& p, int64_t len) {
  p.q_len = p.q_len_padded = p.kv_len = p.kv_len_padded = len;
  p.q_heads = p.kv_heads = 8;
  Launch launch;
  launch.kernel = kernel;
  launch.head_dim = launch.v_head_dim = 128;
  launch.problems = {&p, 1};
  return launch;
}

TEST(CpuAttentionTest, WorkspaceOfFlashDoesNotGrowWithLength) {
  Problem p;
  const int64_t small = cpu::WorkspaceBytes(Shape(Kernel::kFlash, p, 64), 4);
  EXPECT_EQ(cpu::WorkspaceBytes(Shape(Kernel::kFlash, p, int64_t{1} << 20), 4), small);
  EXPECT_LT(small, 4 << 20);
}

TEST(CpuAttentionTest, WorkspaceOfNaiveAndOnlineHoldsTheScoresOfAHead) {
  for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline}) {
    Problem p;
    EXPECT_GE(cpu::WorkspaceBytes(Shape(kernel, p, 8192), 1), int64_t{8192} * 8192 * 4);
  }
}

TEST(CpuAttentionTest, RefusesAWorkspaceThatIsTooSmall) {
  for (const Kernel kernel : kKernels) {
    LaunchSpec spec{.kernel = kernel};
    spec.problems = {{.q_len = 4, .kv_len = 4}};
    HostLaunch host(spec);
    cpu::ThreadPool pool(1);
    std::vector<char> memory(64);
    EXPECT_EQ(cpu::Run(host.launch(), memory.data(), 64, pool).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(cpu::Run(host.launch(), nullptr, 0, pool).code(), absl::StatusCode::kInvalidArgument);
  }
}

// 2^47 heads in all, of which each row of weights would be looked at 2^16 times: whoever looks never ends.
TEST(CpuAttentionTest, HeadsOfEmptySequencesAreNotLookedAt) {
  const std::vector<int64_t> rows(65536, 0);
  float nothing = 0;
  Problem empty;
  empty.q_heads = std::numeric_limits<int32_t>::max();
  empty.kv_heads = 1;
  empty.weights = &nothing;
  empty.weight_rows = rows.data();
  empty.weight_row_count = static_cast<int64_t>(rows.size());
  const std::vector<Problem> problems(65536, empty);
  for (const Kernel kernel : kKernels) {
    Launch launch;
    launch.kernel = kernel;
    launch.head_dim = launch.v_head_dim = 8;
    launch.problems = problems;
    RunOn(launch, 1);
  }
  EXPECT_EQ(nothing, 0);
}

TEST(CpuAttentionTest, NamesItsInstructions) { EXPECT_FALSE(cpu::InstructionSet().empty()); }

TEST(CpuAttentionTest, FlashTileIsAFunctionOfTheType) {
  Problem p;
  const TileShape tile = cpu::FlashTile(Shape(Kernel::kFlash, p, 100));
  EXPECT_GT(tile.rows, 0);
  EXPECT_GT(tile.keys, 0);
}

}  // namespace
}  // namespace attend::test
