#include "server/device/worker_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace attend::server {
namespace {

TEST(WorkerPool, EachIndexRunsOnceOnAThreadBelowTheCount) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
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
TEST(WorkerPool, ThreadNumbersAreExclusiveWithinALoop) {
  WorkerPool pool(4);
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

TEST(WorkerPool, AShortLoopEndsWhileALongOneRuns) {
  WorkerPool pool(2);
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

}  // namespace
}  // namespace attend::server
