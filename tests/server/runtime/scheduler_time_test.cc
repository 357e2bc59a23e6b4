// Deadlines, cancellation and drain; the clock is the test's.
#include <atomic>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "server/memory/region_pool.h"
#include "tests/server/runtime/fake_clock.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

class TimeTest : public testing::Test {
 protected:
  void Start(SchedulerOptions options = {}, const FakeDeviceOptions& device = {}) {
    options.clock = &clock_;
    scheduler_ = MakeScheduler(options, &control_, device, &observer_);
  }
  uint64_t Submit(const FakeJob& job) {
    const absl::StatusOr<uint64_t> id = SubmitFake(*scheduler_, answers_, job);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }

  FakeClock clock_;
  FakeDeviceControl control_;
  RecordingObserver observer_;
  Answers answers_;
  std::unique_ptr<Scheduler> scheduler_;
};

// S7: while the running batch goes on, not when it ends.
TEST_F(TimeTest, ADeadlineIsNoticedWhenItPasses) {
  Start();
  Submit({"runs"});
  Submit({"waits", FakeCall(), 5, "a", clock_.Now() + absl::Seconds(1)});
  Submit({"patient", FakeCall(), 7, "a", clock_.Now() + absl::Seconds(100)});
  clock_.Advance(absl::Milliseconds(1001));
  answers_.Await(1);
  EXPECT_EQ(answers_.status("waits").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(observer_.count("deadline"), 1);
  EXPECT_EQ(scheduler_->queue().host_bytes, 7);  // its memory is free again
  EXPECT_EQ(control_.running(), 1);
  control_.Complete();
  control_.Complete();
  EXPECT_TRUE(answers_.status("patient").ok());
}

TEST_F(TimeTest, ADeadlineThatHasPassedBeforeSubmit) {
  Start();
  Submit({"late", FakeCall(), 0, "a", clock_.Now()});
  EXPECT_EQ(answers_.status("late").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(control_.running(), 0);
}

TEST_F(TimeTest, ADeadlineThatPassesWhileItRunsDiscardsTheAnswer) {
  Start();
  Submit({"slow", FakeCall(), 0, "a", clock_.Now() + absl::Seconds(1)});
  clock_.Advance(absl::Seconds(2));
  control_.Complete();
  EXPECT_EQ(answers_.status("slow").code(), absl::StatusCode::kDeadlineExceeded);
}

// S6.
TEST_F(TimeTest, CancelDropsWhatWaitsAtOnceAndWhatRunsWhenItHasRun) {
  Start();
  const uint64_t runs = Submit({"runs"});
  const uint64_t waits = Submit({"waits", FakeCall(), 5});
  scheduler_->Cancel(waits);
  EXPECT_EQ(answers_.status("waits").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_->queue().host_bytes, 0);
  scheduler_->Cancel(runs);
  EXPECT_EQ(answers_.size(), 1);
  control_.Complete();
  EXPECT_EQ(answers_.status("runs").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(observer_.count("cancelled"), 2);
  scheduler_->Cancel(runs);  // long gone
  scheduler_->Cancel(12345);
}

TEST_F(TimeTest, CancelBeforeSubmit) {
  Start();
  auto admission = scheduler_->Admit(FakeCall(), 0, {});
  ASSERT_TRUE(admission.ok());
  scheduler_->Cancel((*admission)->id());
  auto job = std::make_unique<Job>();
  job->call = FakeCall();
  job->request_id = "early";
  job->done = answers_.Done();
  scheduler_->Submit(std::move(job), *std::move(admission));
  EXPECT_EQ(answers_.status("early").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(control_.running(), 0);
  EXPECT_EQ(scheduler_->queue().requests, 0);
}

TEST_F(TimeTest, QueueTimeIsReported) {
  Start();
  Submit({"first"});
  Submit({"second"});
  clock_.Advance(absl::Milliseconds(250));
  control_.Complete();
  control_.Complete();
  EXPECT_EQ(answers_.report("first").queue_ns, 0);
  EXPECT_EQ(answers_.report("second").queue_ns, 250000000);
}

TEST_F(TimeTest, CompanyIsAwaitedForTheDelayAndNoLonger) {
  SchedulerOptions options;
  options.max_queue_delay = absl::Milliseconds(5);
  Start(options);
  Submit({"a"});
  clock_.Advance(absl::Milliseconds(4));
  Submit({"b"});
  EXPECT_EQ(control_.running(), 0);
  clock_.Advance(absl::Milliseconds(1));
  control_.AwaitRunning(1);
  EXPECT_EQ(control_.calls().size(), 2u);
  control_.Complete();
}

TEST_F(TimeTest, DrainAnswersAllThatWasAccepted) {
  Start();
  Submit({"runs"});
  Submit({"waits"});
  auto admitted = scheduler_->Admit(FakeCall(), 0, {});
  ASSERT_TRUE(admitted.ok());
  std::atomic<bool> drained{false};
  std::thread drain([&] { drained = scheduler_->Drain(absl::Seconds(10)); });
  // As soon as the drain has begun, nothing new is admitted.
  absl::Status refused;
  while (refused.ok()) refused = scheduler_->Admit(FakeCall(), 0, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetReason(refused), "DRAINING");
  auto job = std::make_unique<Job>();
  job->call = FakeCall();
  job->request_id = "admitted before";
  job->done = answers_.Done();
  scheduler_->Submit(std::move(job), *std::move(admitted));
  EXPECT_FALSE(drained);
  while (control_.running() > 0) control_.Complete();
  drain.join();
  EXPECT_TRUE(drained);
  for (const char* id : {"runs", "waits", "admitted before"}) EXPECT_TRUE(answers_.status(id).ok()) << id;
}

TEST_F(TimeTest, DrainThatRunsOutOfTimeAnswersWhatWaits) {
  Start();
  Submit({"runs"});
  Submit({"waits"});
  std::atomic<bool> done{false};
  bool drained = true;
  std::thread drain([&] {
    drained = scheduler_->Drain(absl::Seconds(10));
    done = true;
  });
  while (scheduler_->Admit(FakeCall(), 0, {}).ok()) {
  }
  while (!done) {
    clock_.Advance(absl::Seconds(11));
    std::this_thread::yield();
  }
  drain.join();
  EXPECT_FALSE(drained);
  EXPECT_EQ(answers_.status("waits").code(), absl::StatusCode::kUnavailable);
  control_.Complete();
  EXPECT_TRUE(answers_.status("runs").ok());
}

// Callers that come, cancel and time out from many threads while batches run: each job is answered once,
// every block goes back, and all counts end at zero.
TEST_F(TimeTest, AStormOfCancellationsAndDeadlinesLeaksNothing) {
  constexpr int kThreads = 4, kRounds = 1500;
  SchedulerOptions options;
  options.clock = Clock::Real();
  FakeDeviceOptions device;
  device.slots = 2;
  scheduler_ = MakeScheduler(options, &control_, device, &observer_);
  const auto pool = CreateRegionPool(*MapHostRegion(16 << 20));
  std::atomic<bool> stop{false};
  std::thread completer([&] {
    while (!stop) {
      if (control_.running() > 0) control_.Complete();
      std::this_thread::yield();
    }
  });
  std::atomic<int64_t> submitted{0}, answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kRounds; ++i) {
        auto admission = scheduler_->Admit(FakeCall(1, 1, random() % 500), 1024, {});
        ASSERT_TRUE(admission.ok()) << admission.status();
        const uint64_t id = (*admission)->id();
        if (random() % 8 == 0) continue;  // gone before its bytes were read
        auto job = std::make_unique<Job>();
        job->call = FakeCall(1, 1, 100);
        job->fair_key = std::to_string(random() % 7);
        job->inputs = *pool->Allocate(1024);
        if (random() % 3 == 0) job->deadline = absl::Now() + absl::Microseconds(random() % 300);
        job->done = [&answered](std::unique_ptr<Job>, absl::Status) { ++answered; };
        const bool cancel = random() % 3 == 0;
        if (cancel && random() % 4 == 0) scheduler_->Cancel(id);
        ++submitted;
        scheduler_->Submit(std::move(job), *std::move(admission));
        if (cancel) scheduler_->Cancel(id);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(scheduler_->Drain(absl::Seconds(60)));
  stop = true;
  completer.join();
  EXPECT_EQ(answered, submitted);
  EXPECT_EQ(pool->used_bytes(), 0);
  EXPECT_EQ(scheduler_->queue().requests, 0);
  EXPECT_EQ(scheduler_->queue().host_bytes, 0);
  EXPECT_GT(observer_.count("cancelled"), 0);
}

}  // namespace
}  // namespace attend::server
