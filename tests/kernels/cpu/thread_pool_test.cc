#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kernels/cpu/cpu_count.h"

namespace attend::cpu {
namespace {

TEST(ThreadPoolTest, EachIndexRunsOnceOnAThreadBelowTheCount) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      pool.For(count, [&](int64_t i, int thread) {
        ++runs[i];
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, pool.thread_count());
      });
      for (const auto& r : runs) EXPECT_EQ(r, 1);
    }
  }
}

// Scratch is per thread of a loop: two indices of one loop never run under one thread number at once.
TEST(ThreadPoolTest, ThreadNumbersAreExclusiveWithinALoop) {
  ThreadPool pool(4);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&pool] {
      for (int round = 0; round < 100; ++round) {
        std::vector<std::atomic<int>> inside(pool.thread_count());
        std::atomic<int64_t> sum{0};
        pool.For(50, [&](int64_t i, int thread) {
          EXPECT_EQ(++inside[thread], 1);
          sum += i;
          --inside[thread];
        });
        EXPECT_EQ(sum, 50 * 49 / 2);
      }
    });
  }
  for (std::thread& t : callers) t.join();
}

TEST(ThreadPoolTest, AShortLoopEndsWhileALongOneRuns) {
  ThreadPool pool(2);
  absl::Notification short_done, long_started;
  std::atomic<bool> started{false};
  std::thread long_caller([&] {
    pool.For(10, [&](int64_t, int) {
      if (!started.exchange(true)) long_started.Notify();
      short_done.WaitForNotification();
    });
  });
  long_started.WaitForNotification();
  std::atomic<int> ran{0};
  pool.For(10, [&](int64_t, int) { ++ran; });
  EXPECT_EQ(ran, 10);
  short_done.Notify();
  long_caller.join();
}

TEST(ThreadPoolTest, ZeroThreadsAreAsManyAsThereAreCpus) {
  EXPECT_EQ(ThreadPool(0).thread_count(), UsableCpus());
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
