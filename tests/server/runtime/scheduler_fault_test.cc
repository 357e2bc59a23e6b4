// Faults of items, of devices, and devices that hang.
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "tests/server/runtime/fake_clock.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

using testing::HasSubstr;

class FaultTest : public testing::Test {
 protected:
  void Start(int devices = 1, SchedulerOptions options = {}) {
    options.clock = &clock_;
    std::vector<std::unique_ptr<Device>> made;
    for (int d = 0; d < devices; ++d) {
      FakeDeviceOptions device;
      device.name = absl::StrCat("fake:", d);
      device.device_bytes_max = 1000 * (d + 1);
      made.push_back(std::make_unique<FakeDevice>(&controls_[d], device));
    }
    scheduler_ = Scheduler::Create(options, std::move(made), &observer_);
  }
  void Submit(const FakeJob& job) { ASSERT_TRUE(SubmitFake(*scheduler_, answers_, job).ok()) << job.id; }

  FakeClock clock_;
  FakeDeviceControl controls_[2];
  RecordingObserver observer_;
  Answers answers_;
  std::unique_ptr<Scheduler> scheduler_;
};

// S12.
TEST_F(FaultTest, AnItemThatFailsFailsAlone) {
  Start();
  Submit({"blocker"});
  for (const char* id : {"a", "b", "c"}) Submit({id});
  controls_[0].Complete();
  controls_[0].Complete(0, {absl::OkStatus(), absl::ResourceExhaustedError("out of memory")});
  EXPECT_TRUE(answers_.status("a").ok());
  EXPECT_EQ(answers_.status("b").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(answers_.status("c").ok());
  EXPECT_TRUE(scheduler_->Health().ok());
  Submit({"next"});
  controls_[0].Complete();
  EXPECT_TRUE(answers_.status("next").ok());
}

// S11.
TEST_F(FaultTest, AStickyFaultFailsWhatWaitsAndIsTold) {
  Start();
  Submit({"runs"});
  Submit({"waits"});
  controls_[0].set_health(absl::InternalError("illegal address"));
  controls_[0].Complete(0, {absl::InternalError("illegal address")});
  EXPECT_EQ(answers_.status("runs").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(answers_.status("waits").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetReason(answers_.status("waits")), "DEVICE_FAILED");
  EXPECT_EQ(GetReason(scheduler_->Admit(FakeCall(), 0, {}).status()), "DEVICE_FAILED");
  EXPECT_EQ(observer_.count("fault fake:0"), 1);
  EXPECT_EQ(scheduler_->Health().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(scheduler_->Health().message()), HasSubstr("illegal address"));
  EXPECT_EQ(controls_[0].running(), 0);
  EXPECT_TRUE(scheduler_->Drain(absl::Seconds(1)));
}

TEST_F(FaultTest, WhatWasAdmittedBeforeTheFaultIsRefusedAtSubmit) {
  Start();
  auto admission = scheduler_->Admit(FakeCall(), 0, {});
  Submit({"runs"});
  controls_[0].set_health(absl::InternalError("gone"));
  controls_[0].Complete();
  auto job = std::make_unique<Job>();
  job->call = FakeCall();
  job->request_id = "late";
  job->done = answers_.Done();
  scheduler_->Submit(std::move(job), *std::move(admission));
  EXPECT_EQ(answers_.status("late").code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultTest, SoundDevicesGoOnWithWhatTheyCanRun) {
  Start(2);
  Submit({"on 0", FakeCall(1, 9)});
  Submit({"on 1", FakeCall(1, 9)});
  Submit({"either"});
  Submit({"only on 1", FakeCall(1, 1, 1500)});
  controls_[1].set_health(absl::InternalError("lost"));
  controls_[1].Complete();
  EXPECT_EQ(answers_.status("only on 1").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answers_.status("either").code(), absl::StatusCode::kUnknown);  // waits for device 0
  controls_[0].Complete();
  controls_[0].Complete();
  EXPECT_TRUE(answers_.status("either").ok());
  EXPECT_EQ(answers_.report("either").device, "fake:0");
  EXPECT_FALSE(scheduler_->Health().ok());
  EXPECT_EQ(observer_.count("fault fake:1"), 1);
  EXPECT_EQ(observer_.count("fault fake:0"), 0);
}

TEST_F(FaultTest, ABatchThatDoesNotEndIsAHungDevice) {
  SchedulerOptions options;
  options.hang_factor = 20;
  options.hang_floor = absl::Seconds(2);
  Start(1, options);
  Submit({"hangs", FakeCall(1, 500)});  // 20 * 0.5 s
  Submit({"waits"});
  clock_.Advance(absl::Seconds(5));  // half: looked at for the first time
  clock_.Advance(absl::Seconds(4));
  EXPECT_TRUE(scheduler_->Health().ok());
  while (answers_.size() == 0) {  // the timer thread takes its two looks when it gets to run
    clock_.Advance(absl::Seconds(6));
    std::this_thread::yield();
  }
  EXPECT_EQ(answers_.status("waits").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(observer_.count("fault fake:0"), 1);
  EXPECT_THAT(std::string(observer_.fault().message()), HasSubstr("fake:0"));
  EXPECT_THAT(std::string(observer_.fault().message()), HasSubstr("hangs"));
  EXPECT_EQ(answers_.size(), 1);  // what hangs still owns its memory
  controls_[0].Complete();
  EXPECT_TRUE(answers_.status("hangs").ok());
}

TEST_F(FaultTest, AClockThatJumpsIsNoHungDevice) {
  SchedulerOptions options;
  options.hang_floor = absl::Seconds(2);
  Start(1, options);
  Submit({"suspended"});
  clock_.Advance(absl::Hours(10));
  controls_[0].Complete();
  EXPECT_TRUE(answers_.status("suspended").ok());
  EXPECT_TRUE(scheduler_->Health().ok());
  EXPECT_EQ(observer_.count("fault fake:0"), 0);
}

}  // namespace
}  // namespace attend::server
