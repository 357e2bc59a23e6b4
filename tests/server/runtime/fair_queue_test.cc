#include "server/runtime/fair_queue.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attend::server {
namespace {

using testing::ElementsAre;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// Entries that wait, taken batch by batch.
class FairQueueTest : public testing::Test {
 protected:
  explicit FairQueueTest(int64_t company = 0) : queue_(company) {}
  Entry* Push(const std::string& key, int milliseconds = 1, absl::Time deadline = absl::InfiniteFuture(),
              int64_t device_bytes = 0, int32_t head_dim = 64) {
    auto entry = std::make_unique<Entry>();
    entry->id = ++next_id_;
    entry->group.head_dim = entry->group.v_head_dim = head_dim;
    entry->group.devices = 1;
    entry->tokens = 10;
    entry->host_bytes = 100;
    entry->device_bytes.push_back(device_bytes);
    entry->cost = absl::Milliseconds(milliseconds);
    entry->job = std::make_unique<Job>();
    entry->job->fair_key = key;
    entry->job->deadline = deadline;
    queue_.Push(entry.get(), kNow);
    entries_.push_back(std::move(entry));
    return entries_.back().get();
  }
  static BatchBounds Bounds(int64_t requests) {
    BatchBounds bounds;
    bounds.requests = requests;
    bounds.device_bytes = bounds.tokens = bounds.host_bytes = 1000000;
    bounds.cost = absl::Hours(1);
    return bounds;
  }
  // Fair keys of the next count entries, taken one by one.
  std::vector<std::string> TakeKeys(int count) {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) {
      for (const Entry* e : queue_.TakeBatch(Bounds(1))) keys.push_back(e->job->fair_key);
    }
    return keys;
  }
  static std::vector<std::string> Keys(const std::vector<Entry*>& entries) {
    std::vector<std::string> keys;
    for (const Entry* e : entries) keys.push_back(e->job->fair_key);
    return keys;
  }

  FairQueue queue_;
  std::vector<std::unique_ptr<Entry>> entries_;
  uint64_t next_id_ = 0;
};

TEST_F(FairQueueTest, CallersTakeTurnsHoweverMuchOneAsks) {
  for (int i = 0; i < 100; ++i) Push("greedy");
  for (int i = 0; i < 3; ++i) Push("modest");
  EXPECT_THAT(TakeKeys(7), ElementsAre("greedy", "modest", "greedy", "modest", "greedy", "modest", "greedy"));
}

TEST_F(FairQueueTest, SharesGoByCostNotByCount) {
  for (int i = 0; i < 10; ++i) Push("long", 100);
  for (int i = 0; i < 200; ++i) Push("short", 1);
  std::map<std::string, double> cost;
  for (int i = 0; i < 102; ++i) {
    const std::vector<Entry*> batch = queue_.TakeBatch(Bounds(1));
    ASSERT_EQ(batch.size(), 1u);
    cost[batch[0]->job->fair_key] += absl::ToDoubleMilliseconds(batch[0]->cost);
  }
  EXPECT_EQ(cost["long"], 200);
  EXPECT_EQ(cost["short"], 100);
}

TEST_F(FairQueueTest, AnIdleCallerSavesNothingUp) {
  Push("early");
  for (int i = 0; i < 20; ++i) Push("busy");
  EXPECT_EQ(TakeKeys(10).size(), 10u);
  for (int i = 0; i < 10; ++i) Push("late");
  // As soon as it comes, it has its half; not ten in a row.
  const std::vector<std::string> keys = TakeKeys(6);
  EXPECT_EQ(std::count(keys.begin(), keys.end(), "late"), 3);
}

TEST_F(FairQueueTest, LeavingShedsNoDebt) {
  for (int i = 0; i < 5; ++i) Push("other", 10);
  Push("sly", 30);
  EXPECT_THAT(TakeKeys(2), ElementsAre("other", "sly"));
  Push("sly", 30);  // it was idle for a moment, owing 20 ms
  EXPECT_THAT(TakeKeys(3), ElementsAre("other", "other", "other"));
}

TEST_F(FairQueueTest, CallersAreForgottenWhenNothingWaits) {
  for (int i = 0; i < 1000; ++i) Push(absl::StrCat("caller ", i), 1 + i % 7);
  EXPECT_EQ(queue_.remembered_flows(), 1000);
  EXPECT_EQ(TakeKeys(1000).size(), 1000u);
  EXPECT_EQ(queue_.remembered_flows(), 0);
  EXPECT_EQ(queue_.cost(), absl::ZeroDuration());
}

TEST_F(FairQueueTest, RemembersABoundedNumberOfIdleCallers) {
  for (int i = 0; i < 20; ++i) Push("stays", 1000000);
  EXPECT_EQ(TakeKeys(1).size(), 1u);
  for (int i = 0; i < 10000; ++i) {
    Push(absl::StrCat("passer-by ", i), 2000000 + i);
    EXPECT_EQ(TakeKeys(1).size(), 1u);
  }
  EXPECT_LE(queue_.remembered_flows(), FairQueue::kIdleFlowsMax + 20);
}

TEST_F(FairQueueTest, TheMostUrgentOfACallerGoesFirst) {
  Entry* const never = Push("a");
  Entry* const later = Push("a", 1, kNow + absl::Seconds(2));
  Entry* const soon = Push("a", 1, kNow + absl::Seconds(1));
  EXPECT_THAT(queue_.TakeBatch(Bounds(3)), ElementsAre(soon, later, never));
}

TEST_F(FairQueueTest, WhatHasNoDeadlineIsDueInTime) {
  Entry* const never = Push("a");
  Entry* const far = Push("a", 1, kNow + FairQueue::kPatience + absl::Seconds(1));
  EXPECT_THAT(queue_.TakeBatch(Bounds(2)), ElementsAre(never, far));
}

TEST_F(FairQueueTest, ABatchHoldsOneGroupOfAllCallers) {
  Push("a");
  Push("a", 1, absl::InfiniteFuture(), 0, 128);
  Push("b");
  Push("b");
  Push("c", 1, absl::InfiniteFuture(), 0, 128);
  EXPECT_THAT(Keys(queue_.TakeBatch(Bounds(64))), ElementsAre("a", "b", "b"));
  EXPECT_THAT(Keys(queue_.TakeBatch(Bounds(64))), ElementsAre("c", "a"));
  EXPECT_TRUE(queue_.TakeBatch(Bounds(64)).empty());
}

TEST_F(FairQueueTest, ABatchObeysEveryBound) {
  for (int i = 0; i < 10; ++i) Push("a", 5, absl::InfiniteFuture(), 7);
  absl::string_view limit;
  BatchBounds bounds = Bounds(64);
  bounds.tokens = 35;
  EXPECT_EQ(queue_.TakeBatch(bounds, &limit).size(), 3u);
  EXPECT_EQ(limit, "tokens");
  bounds = Bounds(64);
  bounds.host_bytes = 200;
  EXPECT_EQ(queue_.TakeBatch(bounds, &limit).size(), 2u);
  EXPECT_EQ(limit, "bytes");
  bounds = Bounds(64);
  bounds.device_bytes = 15;
  EXPECT_EQ(queue_.TakeBatch(bounds, &limit).size(), 2u);
  EXPECT_EQ(limit, "device_memory");
  bounds = Bounds(64);
  bounds.cost = absl::Milliseconds(9);
  EXPECT_EQ(queue_.TakeBatch(bounds, &limit).size(), 1u);
  EXPECT_EQ(limit, "time");
  EXPECT_EQ(queue_.TakeBatch(Bounds(1), &limit).size(), 1u);
  EXPECT_EQ(limit, "requests");
  limit = "";
  EXPECT_EQ(queue_.TakeBatch(Bounds(1), &limit).size(), 1u);
  EXPECT_EQ(limit, "") << "nothing was left";
}

TEST_F(FairQueueTest, OneThatExceedsTheBoundsRunsAlone) {
  Push("a");
  Push("b");
  BatchBounds bounds = Bounds(64);
  bounds.tokens = 1;
  EXPECT_EQ(queue_.TakeBatch(bounds).size(), 1u);
}

TEST_F(FairQueueTest, ALargeOnePassedOverForMemoryIsNotPassedForEver) {
  Entry* const large = Push("large", 1, absl::InfiniteFuture(), 500);
  BatchBounds bounds = Bounds(1);
  bounds.device_bytes = 100;
  int passed = 0;
  for (;; ++passed) {
    Push(absl::StrCat("small ", passed), 1, absl::InfiniteFuture(), 10);
    if (queue_.TakeBatch(bounds).empty()) break;
  }
  EXPECT_EQ(passed, FairQueue::kBypassMax);
  bounds.device_bytes = 500;
  EXPECT_THAT(queue_.TakeBatch(bounds), ElementsAre(large));
}

class CompanyTest : public FairQueueTest {
 protected:
  CompanyTest() : FairQueueTest(3) {}
};

TEST_F(CompanyTest, IsAwaitedUntilReadyOrEnough) {
  Push("a");
  Push("b");
  EXPECT_TRUE(queue_.TakeBatch(Bounds(64)).empty());
  Push("c");
  EXPECT_EQ(queue_.TakeBatch(Bounds(64)).size(), 3u);
  Entry* const lone = Push("a");
  EXPECT_TRUE(queue_.TakeBatch(Bounds(64)).empty());
  queue_.SetReady(lone);
  EXPECT_THAT(queue_.TakeBatch(Bounds(64)), ElementsAre(lone));
}

// Against a plain model: whatever comes and goes, every entry is taken or removed exactly once, counts
// stay right, and batches are of one group within bounds.
TEST_F(FairQueueTest, NothingIsLostOrTakenTwice) {
  std::mt19937 random(7);
  std::set<Entry*> waiting;
  absl::Duration cost;
  for (int i = 0; i < 20000; ++i) {
    const int what = static_cast<int>(random() % 10);
    if (what < 6) {
      Entry* const e =
          Push(std::to_string(random() % 20), 1 + random() % 50, kNow + absl::Milliseconds(random() % 20000),
               random() % 100, 8 * (1 + random() % 4));
      waiting.insert(e);
      cost += e->cost;
    } else if (what < 8 && !waiting.empty()) {
      Entry* const e = *std::next(waiting.begin(), random() % waiting.size());
      queue_.Remove(e);
      waiting.erase(e);
      cost -= e->cost;
    } else {
      BatchBounds bounds = Bounds(1 + random() % 8);
      bounds.tokens = 10 + random() % 60;
      const std::vector<Entry*> batch = queue_.TakeBatch(bounds);
      EXPECT_EQ(batch.empty(), waiting.empty());
      int64_t tokens = 0;
      for (Entry* e : batch) {
        EXPECT_EQ(waiting.erase(e), 1u);
        EXPECT_EQ(e->group, batch[0]->group);
        tokens += e->tokens;
        cost -= e->cost;
      }
      EXPECT_LE(tokens, bounds.tokens);
    }
    ASSERT_EQ(queue_.size(), static_cast<int64_t>(waiting.size()));
    ASSERT_EQ(queue_.cost(), cost);
  }
}

TEST_F(FairQueueTest, CostAheadIsAllThatWaitsButNoMoreOfOthersThanTheirShares) {
  Entry next;
  next.cost = absl::Milliseconds(2);
  EXPECT_EQ(queue_.CostAhead("a", next), absl::ZeroDuration());
  for (int i = 0; i < 100; ++i) Push("crowd", 10);
  Push("a", 3);
  EXPECT_EQ(queue_.CostAhead("crowd", next), absl::Milliseconds(1003)) << "its own first, then a's 3";
  EXPECT_EQ(queue_.CostAhead("a", next), absl::Milliseconds(3 + 5)) << "the crowd gets as much as a: 3 and 2";
  EXPECT_EQ(queue_.CostAhead("new", next), absl::Milliseconds(2 * 2));
}

}  // namespace
}  // namespace attend::server
