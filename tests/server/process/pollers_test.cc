#include "server/process/pollers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace attend::server {
namespace {

constexpr Pollers::Clock::time_point kStart(std::chrono::hours(1));
constexpr Pollers::Clock::time_point kLater = kStart + Pollers::kPatience + std::chrono::milliseconds(1);

TEST(Pollers, OneOfTheFirstQueueWaitsWithoutEnd) {
  Pollers pollers(1, 4);
  pollers.Join();
  pollers.Add(kStart);
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kForever);
}

TEST(Pollers, AsManyAsThereAreCallsAndLongerOnlyForPatience) {
  Pollers pollers(1, 3);
  for (int i = 0; i < 5; ++i) pollers.Add(kStart);
  for (int i = 0; i < 3; ++i) pollers.Join();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kPatience);
  for (int i = 0; i < 3; ++i) pollers.Answered();
  EXPECT_EQ(pollers.Wait(kStart), Pollers::kPatience);
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
  pollers.Leave();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kPatience);  // two for two calls
  pollers.Answered();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
  pollers.Leave();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kForever);
}

TEST(Pollers, OneOfAnotherQueueStaysForCallsThatHaveNotEnded) {
  Pollers pollers(0, 3);
  for (int i = 0; i < 2; ++i) pollers.Add(kStart);
  for (int i = 0; i < 2; ++i) pollers.Join();
  for (int i = 0; i < 2; ++i) pollers.Answered();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
  pollers.Leave();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kPatience);
  for (int i = 0; i < 2; ++i) pollers.Ended();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
}

TEST(Pollers, LoadThatComesBackKeepsThem) {
  Pollers pollers(1, 2);
  for (int i = 0; i < 2; ++i) pollers.Add(kStart);
  for (int i = 0; i < 2; ++i) pollers.Join();
  pollers.Answered();
  pollers.Add(kLater);
  pollers.Answered();
  EXPECT_NE(pollers.Wait(kLater), Pollers::kLeave);
}

TEST(Pollers, WhoIsNotWantedWaitsForACall) {
  Pollers pollers(0, 4);
  std::vector<std::thread> threads;
  absl::Notification joined;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      pollers.Join();
      if (pollers.count() == 4) joined.Notify();
    });
  }
  for (int i = 0; i < 3; ++i) pollers.Add(kStart);
  EXPECT_FALSE(joined.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  pollers.Add(kStart);
  for (std::thread& thread : threads) thread.join();
}

// The call that comes between a thread's last look and its sleep.
TEST(Pollers, WhoLeavesSeesTheCallThatCameMeanwhile) {
  Pollers pollers(0, 1);
  pollers.Add(kStart);
  pollers.Join();
  pollers.Answered();
  pollers.Ended();
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
  pollers.Add(kLater);
  pollers.Leave();
  pollers.Join();
  EXPECT_EQ(pollers.count(), 1);
}

TEST(Pollers, WhoHasNoRestGetsHelpForAWhile) {
  Pollers pollers(1, 2);
  pollers.Join();
  pollers.Help(kStart);
  pollers.Join();
  EXPECT_NE(pollers.Wait(kStart), Pollers::kLeave);
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
  pollers.Help(kLater);  // there is nobody left to join
  EXPECT_NE(pollers.Wait(kLater), Pollers::kLeave);
}

TEST(Pollers, WhoDoesNotComeBackIsReplaced) {
  Pollers pollers(1, 3);
  pollers.Join();
  pollers.Begin(0, kStart);
  pollers.Look(kLater);
  pollers.Join();
  pollers.Begin(2, kStart);
  pollers.Look(kLater);
  pollers.Join();
  EXPECT_EQ(pollers.count(), 3);
  // The one that is not stuck stays for good, and is one too many once the others are back.
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kPatience);
  pollers.End(0);
  pollers.End(2);
  pollers.Look(kLater);
  EXPECT_EQ(pollers.Wait(kLater), Pollers::kLeave);
}

TEST(Pollers, CloseLetsEverybodyJoin) {
  Pollers pollers(0, 2);
  std::thread waits([&] { pollers.Join(); });
  pollers.Close();
  waits.join();
  pollers.Join();
}

}  // namespace
}  // namespace attend::server
