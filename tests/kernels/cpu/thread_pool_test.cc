#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_count.h"

namespace attend::cpu {
namespace {

TEST(ThreadPoolTest, RunsEachIndexOnce) {
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (const int64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      pool.For(count, [&](int64_t i, int) { ++runs[i]; });
      for (const auto& r : runs) EXPECT_EQ(r, 1);
    }
  }
}

TEST(ThreadPoolTest, NoTwoRunWithTheSameThreadNumber) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  pool.For(2000, [&](int64_t, int thread) {
    EXPECT_EQ(busy[thread].fetch_add(1), 0);
    busy[thread].fetch_sub(1);
  });
}

TEST(ThreadPoolTest, CallersTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) pool.For(20, [&](int64_t i, int) { sum += i; });
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 50 * 190);
}

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    std::string name = ::testing::TempDir() + "attend_cgroup_XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  std::string root_;
};

TEST_F(CgroupTest, NoFilesNoQuota) { EXPECT_EQ(CgroupCpuQuota(root_), 0); }

TEST_F(CgroupTest, VersionTwoTakesTheTightestOfItsAncestors) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 1.5);
  Write("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 0.5);
}

TEST_F(CgroupTest, VersionTwoInAContainerWithTheHostsPath) {
  Write("/proc/self/cgroup", "0::/kubepods/pod1\n");
  Write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 4);
}

TEST_F(CgroupTest, VersionOne) {
  Write("/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "250000\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 2.5);
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CgroupCpuQuota(root_), 0);
}

TEST(UsableCpusTest, AtLeastOne) { EXPECT_GE(UsableCpus(), 1); }

}  // namespace
}  // namespace attend::cpu
