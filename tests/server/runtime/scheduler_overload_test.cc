// Twice the load that a device can bear: what is admitted is answered in time, and the device does little
// else. Time is a clock that the test turns, so counts are exact whatever the machine.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "server/runtime/pace.h"
#include "tests/server/runtime/fake_clock.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(1);

TEST(Pace, LearnsWhatPredictionsAreWorth) {
  Pace pace;
  EXPECT_EQ(pace.Real(absl::Milliseconds(7)), absl::Milliseconds(7));
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 20; ++i) {
    pace.Begin(now);
    now += absl::Milliseconds(30);
    pace.End(absl::Milliseconds(10), now);
    now += absl::Seconds(1);  // idle: says nothing
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(pace.Real(absl::Milliseconds(10))), 30, 1);
}

TEST(Pace, ForgetsAStallWithinHundredsOfShortBatches) {
  constexpr absl::Duration kShort = absl::Microseconds(20);
  Pace pace;
  absl::Time now = absl::UnixEpoch();
  const auto run = [&](absl::Duration real) {
    pace.Begin(now);
    now += real;
    pace.End(kShort, now);
  };
  for (int i = 0; i < 100; ++i) run(kShort);
  run(absl::Seconds(3));
  EXPECT_GT(pace.Real(kShort), 100 * kShort);
  for (int i = 0; i < 500; ++i) run(kShort);
  EXPECT_LT(pace.Real(kShort), 2 * kShort);
}

TEST(Pace, CountsTimeThatBatchesShareOnce) {
  Pace pace;
  absl::Time now = absl::UnixEpoch();
  pace.Begin(now);
  for (int i = 0; i < 50; ++i) {
    pace.Begin(now);
    now += absl::Milliseconds(5);
    pace.End(absl::Milliseconds(10), now);
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(pace.Real(absl::Milliseconds(10))), 5, 0.2);
}

// One device whose launches take eight ticks and hold up to four requests; a request arrives every tick,
// twice as many as it can serve, and is worth nothing after a hundred. Predictions say half of the truth.
class OverloadTest : public testing::Test {
 protected:
  static constexpr int kTicks = 4000, kLaunchTicks = 8, kBatch = 4, kPatienceTicks = 100;

  void Start(double wait_share_max) {
    SchedulerOptions options;
    options.clock = &clock_;
    options.batch_requests_max = kBatch;
    options.queue_wait_share_max = wait_share_max;
    scheduler_ = MakeScheduler(options, &control_, {}, &observer_);
  }

  void Tick() {
    clock_.Advance(kTick);
    if (control_.running() == 0) return;
    if (++launch_ticks_ < kLaunchTicks) return;
    launch_ticks_ = 0;
    control_.Complete();
  }

  // False where it is refused.
  bool Submit(const std::string& id, const std::string& key = "crowd") {
    const FakeJob job = {id, FakeCall(1, 1), 0, key, clock_.Now() + kPatienceTicks * kTick};
    const absl::Status status = SubmitFake(*scheduler_, answers_, job).status();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(GetReason(status), "OVERLOADED");
      EXPECT_GT(GetRetryDelay(status).value_or(absl::ZeroDuration()), absl::ZeroDuration());
    }
    return status.ok();
  }

  // Requests that come every tick; how many of them are admitted.
  int Load(int ticks) {
    int admitted = 0;
    for (int t = 0; t < ticks; ++t) {
      Tick();
      admitted += Submit(absl::StrCat("r", next_++)) ? 1 : 0;
    }
    return admitted;
  }

  int InTime() {
    int count = 0;
    for (int i = 0; i < next_; ++i) count += answers_.status(absl::StrCat("r", i)).ok() ? 1 : 0;
    return count;
  }

  void TearDown() override {
    while (control_.running() > 0) control_.Complete();
    EXPECT_TRUE(scheduler_->Drain(absl::Seconds(1)));
  }

  FakeClock clock_;
  FakeDeviceControl control_;
  RecordingObserver observer_;
  Answers answers_;
  std::unique_ptr<Scheduler> scheduler_;
  int launch_ticks_ = 0;
  int next_ = 0;
};

TEST_F(OverloadTest, GoodputStaysAtThePeak) {
  Start(0.5);
  const int admitted = Load(kTicks);
  constexpr int kPeak = kTicks / kLaunchTicks * kBatch;
  EXPECT_GE(InTime(), kPeak * 9 / 10);
  // Of what was admitted all but what still waits has been answered in time.
  EXPECT_GE(InTime(), admitted - kPatienceTicks);
  EXPECT_EQ(observer_.count("deadline"), 0);
  EXPECT_GE(observer_.count("overloaded"), kTicks / 3);
}

TEST_F(OverloadTest, WithoutRefusalsAnswersComeTooLate) {
  Start(0);
  EXPECT_EQ(Load(kTicks), kTicks);
  EXPECT_LT(InTime(), kTicks / kLaunchTicks * kBatch / 2);
}

TEST_F(OverloadTest, OneCallersCrowdDoesNotShutOutAnother) {
  Start(0.5);
  Load(kTicks / 4);
  ASSERT_GT(observer_.count("overloaded"), 0);
  for (int i = 0; i < 10; ++i) {
    Load(2 * kLaunchTicks);
    EXPECT_TRUE(Submit(absl::StrCat("quiet", i), "quiet"));
  }
}

TEST_F(OverloadTest, WhoNamesNoDeadlineWaits) {
  Start(0.5);
  Load(kTicks / 4);
  ASSERT_GT(observer_.count("overloaded"), 0);
  EXPECT_TRUE(SubmitFake(*scheduler_, answers_, {"patient"}).ok());
}

TEST(Overload, LongWorkThatRunsOrWaitsDoesNotShutShortWorkOut) {
  FakeDeviceControl control;
  RecordingObserver observer;
  Answers answers;
  FakeDeviceOptions device;
  device.slots = 2;
  const auto scheduler = MakeScheduler({}, &control, device, &observer);
  const Call hour = FakeCall(1, 3'600'000);
  for (const char* id : {"runs", "waits"}) ASSERT_TRUE(SubmitFake(*scheduler, answers, {id, hour}).ok());
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"fills the other slot"}).ok());
  const absl::Time soon = absl::Now() + absl::Minutes(1);
  EXPECT_TRUE(SubmitFake(*scheduler, answers, {"short", FakeCall(), 0, "b", soon}).ok());
  EXPECT_TRUE(SubmitFake(*scheduler, answers, {"short too", FakeCall(), 0, "b", soon}).ok());
  const FakeJob late = {"long", FakeCall(1, 1000), 0, "b", soon};
  EXPECT_EQ(GetReason(SubmitFake(*scheduler, answers, late).status()), "OVERLOADED");
  while (control.running() > 0) control.Complete();
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(1)));
}

}  // namespace
}  // namespace attend::server
