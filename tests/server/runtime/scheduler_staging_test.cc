// Where requests are copied ahead of their batch, and where they run then.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/runtime/fake_clock.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

class StagingTest : public testing::Test {
 protected:
  // A request between its admission and Submit.
  struct Request {
    std::unique_ptr<Admission> admission;
    std::unique_ptr<Job> job;
  };

  void Start(int devices, bool stages = true) {
    SchedulerOptions options;
    options.clock = &clock_;
    std::vector<std::unique_ptr<Device>> made;
    for (int d = 0; d < devices; ++d) {
      FakeDeviceOptions device;
      device.name = absl::StrCat("fake:", d);
      device.stages = stages;
      made.push_back(std::make_unique<FakeDevice>(&controls_[d], device));
    }
    scheduler_ = Scheduler::Create(options, std::move(made), nullptr);
  }

  Request Admit(const FakeJob& fake) {
    Request request;
    auto admission = scheduler_->Admit(fake.call, 0, {});
    EXPECT_TRUE(admission.ok()) << admission.status();
    request.admission = *std::move(admission);
    request.job = std::make_unique<Job>();
    request.job->call = fake.call;
    request.job->deadline = fake.deadline;
    request.job->request_id = fake.id;
    request.job->done = [this, done = answers_.Done()](std::unique_ptr<Job> job, absl::Status status) {
      held_at_done_ += job->staging != nullptr ? 1 : 0;
      done(std::move(job), std::move(status));
    };
    return request;
  }
  // Admitted and, where there is room, staged.
  Request Stage(const FakeJob& fake) {
    Request request = Admit(fake);
    request.job->staging = scheduler_->Stage(*request.admission, {});
    return request;
  }
  void Submit(Request request) { scheduler_->Submit(std::move(request.job), std::move(request.admission)); }
  void Block(const std::string& id, int32_t milliseconds = 1) {
    Submit(Admit({id, FakeCall(1, milliseconds)}));
  }

  FakeClock clock_;
  FakeDeviceControl controls_[2];
  Answers answers_;
  int held_at_done_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(StagingTest, WhatIsStagedRunsThereAndIsDroppedBeforeItsAnswer) {
  Start(1);
  Request a = Stage({"a"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  Submit(std::move(a));
  EXPECT_EQ(controls_[0].staged(), 1);
  controls_[0].Complete();
  EXPECT_TRUE(answers_.status("a").ok());
  EXPECT_EQ(controls_[0].stagings(), 0);
  EXPECT_EQ(held_at_done_, 0);
}

TEST_F(StagingTest, DevicesTakeTurnsAndKeepWhatTheyHaveInWhateverOrderItIsSubmitted) {
  Start(2);
  Request a = Stage({"a"}), b = Stage({"b"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  EXPECT_EQ(controls_[1].stagings(), 1);
  Submit(std::move(b));
  EXPECT_EQ(controls_[0].running(), 0);
  EXPECT_EQ(controls_[1].staged(), 1);
  Submit(std::move(a));
  EXPECT_EQ(controls_[0].staged(), 1);
  controls_[0].Complete();
  controls_[1].Complete();
}

TEST_F(StagingTest, GoesToTheDeviceWithTheLeastToDo) {
  Start(2);
  Request long_one = Stage({"long", FakeCall(1, 50)});
  Request first = Stage({"first", FakeCall(1, 20)}), second = Stage({"second", FakeCall(1, 20)});
  EXPECT_EQ(controls_[0].stagings(), 1);
  EXPECT_EQ(controls_[1].stagings(), 2);
}

TEST_F(StagingTest, RunsElsewhereAtOnceWhereItsDeviceHasNoSlot) {
  Start(2);
  Request a = Stage({"a"});
  Block("busy");  // goes to the first as well: nothing runs there yet
  ASSERT_EQ(controls_[0].running(), 1);
  Submit(std::move(a));
  ASSERT_EQ(controls_[1].running(), 1);
  EXPECT_EQ(controls_[1].staged(), 0);  // copied by the batch
  controls_[1].Complete();
  EXPECT_TRUE(answers_.status("a").ok());
  EXPECT_EQ(controls_[0].stagings(), 0);
  controls_[0].Complete();
}

TEST_F(StagingTest, RunsElsewhereWhereItsDeviceHasFailed) {
  Start(2);
  Block("breaks");
  ASSERT_EQ(controls_[0].running(), 1);
  Block("beside", 50);
  controls_[0].Complete();
  Request a = Stage({"a"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  Block("faulty");
  controls_[0].set_health(absl::InternalError("gone"));
  controls_[0].Complete();
  Submit(std::move(a));
  controls_[1].Complete();
  EXPECT_EQ(controls_[1].staged(), 0);
  controls_[1].Complete();
  EXPECT_TRUE(answers_.status("a").ok());
}

TEST_F(StagingTest, NothingIsStagedThatWouldWait) {
  Start(1);
  Block("runs");
  Request no_slot = Stage({"no slot"});
  EXPECT_EQ(no_slot.job->staging, nullptr);
  Block("waits");
  controls_[0].Complete();
  EXPECT_EQ(controls_[0].running(), 1);
  Block("waits too");
  EXPECT_EQ(Stage({"behind"}).job->staging, nullptr);
  controls_[0].Complete();
  controls_[0].Complete();
  EXPECT_NE(Stage({"free"}).job->staging, nullptr);
}

TEST_F(StagingTest, WhatEndsBeforeItRunsCountsNoMore) {
  Start(2);
  {
    Request dropped = Stage({"dropped"});  // a violation was found
    EXPECT_EQ(controls_[0].stagings(), 1);
  }
  Request cancelled = Stage({"cancelled"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  scheduler_->Cancel(cancelled.admission->id());
  Submit(std::move(cancelled));
  EXPECT_TRUE(absl::IsCancelled(answers_.status("cancelled")));
  Request late = Stage({"late", FakeCall(), 0, "a", clock_.Now()});
  EXPECT_EQ(controls_[0].stagings(), 1);
  Submit(std::move(late));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers_.status("late")));

  Request waits = Stage({"waits"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  Block("busy", 2);
  Block("busy too", 2);
  const uint64_t id = waits.admission->id();
  Submit(std::move(waits));
  scheduler_->Cancel(id);
  EXPECT_TRUE(absl::IsCancelled(answers_.status("waits")));
  EXPECT_EQ(controls_[0].stagings(), 0);
  controls_[0].Complete();
  controls_[1].Complete();
  // Were one of them still counted, the other device would have less to do.
  Request next = Stage({"next"});
  EXPECT_EQ(controls_[0].stagings(), 1);
  EXPECT_EQ(held_at_done_, 0);
}

TEST_F(StagingTest, ADeviceThatStagesNothingIsNoPlaceToGo) {
  Start(2, /*stages=*/false);
  Request a = Stage({"a"});
  EXPECT_EQ(a.job->staging, nullptr);
  Block("busy");
  ASSERT_EQ(controls_[0].running(), 1);
  controls_[0].Complete();
  Submit(std::move(a));
  EXPECT_EQ(controls_[0].running(), 1);
  controls_[0].Complete();
}

TEST_F(StagingTest, AnAdmissionWithItsStagingMayOutliveTheScheduler) {
  Start(1);
  Request a = Stage({"a"});
  scheduler_.reset();
}

}  // namespace
}  // namespace attend::server
