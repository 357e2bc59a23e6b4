// Work conservation, composition of batches, slots and devices, over a device that the test drives.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

using testing::ElementsAre;

class BatchTest : public testing::Test {
 protected:
  void Start(const SchedulerOptions& options = {}, const FakeDeviceOptions& device = {}) {
    scheduler_ = MakeScheduler(options, &control_, device, &observer_);
  }
  void Submit(const FakeJob& job) { ASSERT_TRUE(SubmitFake(*scheduler_, answers_, job).ok()) << job.id; }
  // Completes all that runs until nothing does.
  void CompleteAll() {
    while (control_.running() > 0) control_.Complete();
  }
  void TearDown() override {
    CompleteAll();
    EXPECT_TRUE(scheduler_->Drain(absl::Seconds(10)));
  }

  FakeDeviceControl control_;
  RecordingObserver observer_;
  Answers answers_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(BatchTest, AFreeSlotTakesWhatWaitsAtOnce) {
  Start();
  Submit({"first"});
  EXPECT_EQ(control_.running(), 1);  // before Submit has returned: nobody waits on purpose
  for (int i = 0; i < 5; ++i) Submit({std::to_string(i)});
  EXPECT_EQ(control_.running(), 1);
  control_.Complete();
  EXPECT_THAT(control_.batch_sizes(), ElementsAre(1, 5));
}

TEST_F(BatchTest, TheNextBatchStartsBeforeTheAnswersAreWritten) {
  Start();
  int64_t running_at_answer = -1;
  auto admission = scheduler_->Admit(FakeCall(), 0, {});
  auto job = std::make_unique<Job>();
  job->call = FakeCall();
  job->done = [&](std::unique_ptr<Job>, absl::Status) { running_at_answer = control_.running(); };
  scheduler_->Submit(std::move(job), *std::move(admission));
  Submit({"next"});
  control_.Complete();
  EXPECT_EQ(running_at_answer, 1);
}

TEST_F(BatchTest, OnlyAgreeingCallsShareALaunch) {
  Start();
  Submit({"blocker"});
  Call fp16 = FakeCall(), wide = FakeCall(), wide_v = FakeCall(), naive = FakeCall(), weights = FakeCall();
  fp16.dtype = DataType::kFp16;
  wide.head_dim = 128;
  wide_v.v_head_dim = 128;
  naive.kernel = Kernel::kNaive;
  weights.return_weights = true;  // AUTO: resolves to NAIVE
  Call flash = FakeCall();
  flash.kernel = Kernel::kFlash;  // what AUTO resolves to
  Call unlike = FakeCall(17);     // another length, mask and layout: all the same
  unlike.causal = Causal::kTopLeft;
  unlike.layout = Layout::kBlhd;
  Submit({"auto", FakeCall()});
  for (const auto& [id, call] : {std::pair("fp16", fp16),
                                 {"wide", wide},
                                 {"wide_v", wide_v},
                                 {"naive", naive},
                                 {"weights", weights},
                                 {"flash", flash},
                                 {"unlike", unlike}}) {
    Submit({id, call});
  }
  CompleteAll();
  EXPECT_EQ(answers_.report("auto").batch_requests, 3);
  EXPECT_EQ(answers_.report("unlike").batch_requests, 3);
  EXPECT_EQ(answers_.report("flash").kernel, Kernel::kFlash);
  EXPECT_EQ(answers_.report("naive").batch_requests, 2);
  EXPECT_EQ(answers_.report("weights").kernel, Kernel::kNaive);
  for (const char* alone : {"fp16", "wide", "wide_v"}) EXPECT_EQ(answers_.report(alone).batch_requests, 1);
}

TEST_F(BatchTest, BoundsOfABatch) {
  SchedulerOptions options;
  options.batch_requests_max = 4;
  options.batch_tokens_max = 100;
  options.batch_bytes_max = 1000;
  options.batch_time_max = absl::Milliseconds(50);
  Start(options);
  Submit({"blocker"});
  for (int i = 0; i < 5; ++i) Submit({absl::StrCat("r", i)});
  EXPECT_EQ(observer_.count("requests"), 0);
  control_.Complete();
  EXPECT_EQ(control_.calls().size(), 4u);
  EXPECT_EQ(observer_.count("requests"), 1);
  CompleteAll();
  for (const FakeJob& job : {FakeJob{"", FakeCall(40)}, FakeJob{"", FakeCall(1), 400},
                             FakeJob{"", FakeCall(1, 20)}, FakeJob{"", FakeCall(1, 1, 400)}}) {
    Submit({"blocker"});
    for (int i = 0; i < 3; ++i) Submit(job);
    control_.Complete();
    EXPECT_EQ(control_.calls().size(), 2u);
    CompleteAll();
  }
}

TEST_F(BatchTest, FairSharesWithinABatch) {
  SchedulerOptions options;
  options.batch_requests_max = 4;
  Start(options);
  Submit({"blocker", FakeCall(), 0, "greedy"});
  for (int i = 0; i < 50; ++i) Submit({absl::StrCat("g", i), FakeCall(), 0, "greedy"});
  for (int i = 0; i < 2; ++i) Submit({absl::StrCat("m", i), FakeCall(), 0, "modest"});
  control_.Complete();
  control_.Complete();
  EXPECT_TRUE(answers_.status("m0").ok());
  EXPECT_TRUE(answers_.status("m1").ok());
  EXPECT_EQ(answers_.size(), 5);
}

TEST_F(BatchTest, SlotsRunBesideEachOtherWithinTheDevicesMemory) {
  FakeDeviceOptions device;
  device.slots = 3;
  SchedulerOptions options;
  options.batch_requests_max = 1;
  Start(options, device);
  for (int i = 0; i < 4; ++i) Submit({std::to_string(i), FakeCall(1, 1, 400)});
  EXPECT_EQ(control_.running(), 2);  // a third would need 1200 of 1000 bytes
  Submit({"small", FakeCall(1, 1, 100), 0, "other"});
  EXPECT_EQ(control_.running(), 3);  // fits beside them
  control_.Complete();
  EXPECT_EQ(control_.running(), 3);
  CompleteAll();
  EXPECT_LE(control_.peak_device_bytes(), 1000);
}

TEST_F(BatchTest, LongRequestsLeaveASlotToShortOnes) {
  FakeDeviceOptions device;
  device.slots = 2;
  SchedulerOptions options;
  options.long_request_time = absl::Milliseconds(100);
  Start(options, device);
  for (int i = 0; i < 3; ++i) Submit({absl::StrCat("long", i), FakeCall(1, 1000), 0, std::to_string(i)});
  EXPECT_EQ(control_.running(), 1);
  Submit({"short", FakeCall()});
  EXPECT_EQ(control_.running(), 2);
  control_.Complete(1);
  EXPECT_TRUE(answers_.status("short").ok());
}

TEST_F(BatchTest, ADeviceThatFinishesInsideRunIsNoRecursion) {
  FakeDeviceOptions device;
  device.at_once = true;
  Start({}, device);
  // Each answer submits the next request, from within the pump.
  constexpr int kDepth = 100000;
  int left = kDepth;
  std::function<void()> next = [&] {
    auto admission = scheduler_->Admit(FakeCall(), 0, {});
    ASSERT_TRUE(admission.ok());
    auto job = std::make_unique<Job>();
    job->call = FakeCall();
    job->done = [&](std::unique_ptr<Job> finished, absl::Status) {
      finished.reset();
      if (--left > 0) next();
    };
    scheduler_->Submit(std::move(job), *std::move(admission));
  };
  next();
  EXPECT_EQ(left, 0);
  EXPECT_EQ(observer_.batched(), kDepth);
}

TEST_F(BatchTest, WaitsForCompanyOnlyWhenTold) {
  SchedulerOptions options;
  options.max_queue_delay = absl::Hours(1);
  options.batch_requests_max = 3;
  Start(options);
  Submit({"a"});
  Submit({"b"});
  EXPECT_EQ(control_.running(), 0);
  Submit({"c"});
  EXPECT_EQ(control_.running(), 1);
  EXPECT_THAT(control_.batch_sizes(), ElementsAre(3));
}

TEST_F(BatchTest, CountsWhatWaitsAndWhatHasRun) {
  Start();
  Submit({"a", FakeCall(), 10});
  Submit({"b", FakeCall(), 20});
  EXPECT_EQ(scheduler_->queue().requests, 1);
  EXPECT_EQ(scheduler_->queue().host_bytes, 30);
  CompleteAll();
  EXPECT_EQ(observer_.batched(), 2);
  EXPECT_EQ(scheduler_->queue().host_bytes, 0);
}

TEST(Devices, TheLeastLoadedTakesTheNextAndIdleOnesShare) {
  FakeDeviceControl controls[2];
  Answers answers;
  std::vector<std::unique_ptr<Device>> devices;
  for (int d = 0; d < 2; ++d) {
    FakeDeviceOptions options;
    options.name = absl::StrCat("fake:", d);
    options.slots = 2;
    devices.push_back(std::make_unique<FakeDevice>(&controls[d], options));
  }
  const auto scheduler = Scheduler::Create({}, std::move(devices), nullptr);
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"big", FakeCall(1, 40)}).ok());
  EXPECT_EQ(controls[0].running(), 1);
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"small", FakeCall(1, 3)}).ok());
  EXPECT_EQ(controls[1].running(), 1);
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"next", FakeCall(1, 3)}).ok());
  EXPECT_EQ(controls[1].running(), 2);
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"full", FakeCall(1, 3)}).ok());
  EXPECT_EQ(controls[0].running(), 2);
  for (FakeDeviceControl& control : controls) {
    while (control.running() > 0) control.Complete();
  }
  EXPECT_EQ(answers.report("big").device, "fake:0");
  EXPECT_EQ(answers.report("next").device, "fake:1");
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(10)));
}

TEST_F(BatchTest, ShortRequestsGatherWhereTheirSlotsAreTakenAndOthersPass) {
  FakeDeviceOptions device;
  device.slots = 4;
  device.short_slots = 2;
  Start({}, device);
  const Call no_time = FakeCall(1, 0);
  for (int i = 0; i < 5; ++i) Submit({absl::StrCat("s", i), no_time});
  EXPECT_THAT(control_.batch_sizes(), ElementsAre(1, 1));
  Submit({"millisecond", FakeCall(1, 1)});
  EXPECT_THAT(control_.batch_sizes(), ElementsAre(1, 1, 1)) << "the other slots are not theirs";
  control_.Complete();
  EXPECT_THAT(control_.batch_sizes(), ElementsAre(1, 1, 1, 3));
}

}  // namespace
}  // namespace attend::server
