#include "server/process/wire_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/synchronization/notification.h"

namespace attend::server {
namespace {

TEST(WireThreads, RunWhatWasPostedInOrderBeforeTheyEnd) {
  std::vector<int> order;
  {
    WireThreads threads(1);
    absl::Notification started, go_on;
    threads.Post([&] {
      started.Notify();
      go_on.WaitForNotification();
    });
    started.WaitForNotification();
    for (const int i : {1, 2, 3}) threads.Post([&order, i] { order.push_back(i); });
    go_on.Notify();
  }  // runs what was posted
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace attend::server
