// Tensors that are copied to a GPU ahead of their batch, over a GPU made of host memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/device/cuda/batch_plan.h"
#include "server/device/cuda/cuda_device.h"
#include "tests/server/device/call_fixture.h"
#include "tests/server/device/fake_cuda_api.h"

namespace attend::test {
namespace {

using server::BatchItem;
using server::BatchResult;
using server::Staging;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr int64_t kRequestBytesMin = 4096;

class CudaStagingTest : public testing::Test {
 protected:
  // 16 MiB of device memory, a MiB of it for staging.
  void Open(server::CudaDeviceOptions options = {}) {
    options.device_bytes = int64_t{16} << 20;
    options.staging_bytes = int64_t{1} << 30;
    options.staged_request_bytes_min = kRequestBytesMin;
    auto device = server::MakeCudaDevice(api_, options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    slot_ = device_->OpenSlot();
    events_ = api_->events();
  }

  std::unique_ptr<Staging> Stage(TestCall& call) { return device_->Stage(call.inputs()); }
  std::unique_ptr<Staging> StageAll(TestCall& call) {
    std::unique_ptr<Staging> staging = Stage(call);
    EXPECT_NE(staging, nullptr);
    for (const auto tensor : {call.q(), call.k(), call.v()}) staging->CopyIn(tensor);
    return staging;
  }
  static BatchItem Item(const TestCall& call, Staging* staging) {
    BatchItem item = call.item();
    item.staging = staging;
    return item;
  }
  BatchResult Run(server::DeviceSlot& slot, const std::vector<BatchItem>& items) {
    BatchResult result;
    absl::Notification done;
    slot.Run(items, [&](BatchResult r) {
      result = std::move(r);
      done.Notify();
    });
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(kLong));
    return result;
  }
  void AwaitCopies() { EXPECT_TRUE(api_->AwaitStream(nullptr).ok()); }
  int64_t staged() const { return device_->memory().staging_used.value_or(-1); }
  void ExpectNothingLeft() {
    EXPECT_EQ(staged(), 0);
    EXPECT_EQ(device_->memory().used, 0);
    EXPECT_EQ(api_->events(), events_);
  }

  const std::shared_ptr<FakeCudaApi> api_ = std::make_shared<FakeCudaApi>();
  std::unique_ptr<server::Device> device_;
  std::unique_ptr<server::DeviceSlot> slot_;
  int events_ = 0;  // of the slot
};

TEST_F(CudaStagingTest, ATensorIsOnTheDeviceWhileTheNextIsStillAwaited) {
  Open();
  TestCall a(SmallCall(2, 40));
  const std::vector<std::byte> kept(a.inputs().begin(), a.inputs().end());
  auto staging = Stage(a);
  ASSERT_NE(staging, nullptr);
  for (const auto tensor : {a.q(), a.k(), a.v()}) {
    staging->CopyIn(tensor);
    AwaitCopies();
    std::fill(tensor.begin(), tensor.end(), std::byte{0xff});  // whoever copied it now would get NaN
  }
  const BatchResult result = Run(*slot_, {Item(a, staging.get())});
  EXPECT_TRUE(result.items[0].status.ok()) << result.items[0].status;
  std::copy(kept.begin(), kept.end(), a.inputs().begin());
  a.ExpectRight();
  EXPECT_EQ(api_->copies_in(), 3);
  EXPECT_EQ(result.copy_in_bytes, a.call().q_bytes() + a.call().k_bytes() + a.call().v_bytes());
  EXPECT_GT(result.copying_in_ns, 0);
  staging.reset();
  ExpectNothingLeft();
}

TEST_F(CudaStagingTest, WhatIsNotStagedIsCopiedByTheBatch) {
  Open();
  TestCall a(SmallCall(2, 40));
  auto staging = Stage(a);
  ASSERT_NE(staging, nullptr);
  staging->CopyIn(a.q());
  staging->CopyIn(a.v());
  const BatchResult result = Run(*slot_, {Item(a, staging.get())});
  a.ExpectRight();
  EXPECT_EQ(api_->copies_in(), 3);
  EXPECT_EQ(result.copy_in_bytes, a.call().q_bytes() + a.call().k_bytes() + a.call().v_bytes());
}

TEST_F(CudaStagingTest, StagedRequestsAndOthersShareALaunchHoweverItIsCut) {
  for (const absl::Duration launch_max : {absl::Seconds(1), absl::Nanoseconds(1)}) {
    server::CudaDeviceOptions options;
    options.launch_max = launch_max;
    slot_.reset();
    Open(options);
    TestCall a(SmallCall(2, 40, 3), 1), b(SmallCall(1, 3, 3), 2), c(SmallCall(3, 41, 3), 3);
    auto staged_a = StageAll(a);
    auto staged_c = StageAll(c);
    const std::vector<BatchItem> items = {Item(a, staged_a.get()), b.item(), Item(c, staged_c.get())};
    const server::BatchPlan plan = server::PlanBatch(items);
    EXPECT_EQ(plan.in.size(), 1u);
    EXPECT_LT(plan.bytes, device_->Measure(a.call())->device_bytes +
                              device_->Measure(b.call())->device_bytes +
                              device_->Measure(c.call())->device_bytes);
    Run(*slot_, items);
    a.ExpectRight();
    b.ExpectRight();
    c.ExpectRight();
  }
}

TEST_F(CudaStagingTest, ScratchIsCountedWhereStagedTensorsLie) {
  Open();
  // Of four blocks side by side, the third is no part of the batch: the distances differ.
  TestCall a(SmallCall(1, 100), 1), b(SmallCall(1, 100), 2), other(SmallCall(1, 100), 3),
      c(SmallCall(1, 100), 4);
  const auto staged_a = StageAll(a), staged_b = StageAll(b), staged_other = StageAll(other),
             staged_c = StageAll(c);
  const BatchResult result =
      Run(*slot_, {Item(a, staged_a.get()), Item(b, staged_b.get()), Item(c, staged_c.get())});
  EXPECT_TRUE(result.items[0].status.ok()) << result.items[0].status;
  a.ExpectRight();
  b.ExpectRight();
  c.ExpectRight();
}

TEST_F(CudaStagingTest, ABatchWaitsForCopiesThatAreOnTheirWay) {
  Open();
  TestCall a(SmallCall(2, 40));
  const std::unique_ptr<Staging> staging = Stage(a);
  ASSERT_NE(staging, nullptr);
  const std::vector<BatchItem> items = {Item(a, staging.get())};
  absl::Notification done;
  {
    absl::MutexLock hold(&api_->copy_gate());
    for (const auto tensor : {a.q(), a.k(), a.v()}) staging->CopyIn(tensor);
    slot_->Run(items, [&](BatchResult) { done.Notify(); });
    EXPECT_FALSE(done.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  }
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLong));
  a.ExpectRight();
}

TEST_F(CudaStagingTest, MemoryForItIsBoundedAndApartFromWhatBatchesNeed) {
  Open();
  TestCall little(SmallCall(1, 8)), third(SmallCall(1, 2000, 1)), whole(SmallCall(1, 100, 570));
  EXPECT_EQ(Stage(little), nullptr);  // not worth it
  EXPECT_EQ(Stage(whole), nullptr);
  EXPECT_EQ(device_->memory().staging, int64_t{1} << 20);
  EXPECT_EQ(device_->device_bytes_max(), int64_t{15} << 20);
  std::vector<std::unique_ptr<Staging>> held;
  while (auto staging = Stage(third)) held.push_back(std::move(staging));
  EXPECT_EQ(held.size(), 2u);
  EXPECT_LE(staged(), device_->memory().staging);
  // All that batches may have is there as ever.
  ASSERT_GT(device_->Measure(whole.call())->device_bytes, int64_t{14} << 20);
  EXPECT_TRUE(Run(*slot_, {Item(whole, nullptr)}).items[0].status.ok());
  held.pop_back();
  EXPECT_NE(Stage(third), nullptr);
}

TEST_F(CudaStagingTest, MemoryOfADroppedRequestIsTakenAnewOnlyAfterItsCopies) {
  Open();
  TestCall half(SmallCall(1, 3000, 1)), other(SmallCall(1, 3000, 1), 2);
  {
    absl::MutexLock hold(&api_->copy_gate());
    auto staging = Stage(half);
    ASSERT_NE(staging, nullptr);
    staging->CopyIn(half.q());
    staging.reset();
    EXPECT_GT(staged(), 0);
    EXPECT_EQ(Stage(other), nullptr);
  }
  AwaitCopies();
  ExpectNothingLeft();
  auto staging = StageAll(other);
  Run(*slot_, {Item(other, staging.get())});
  other.ExpectRight();
}

TEST_F(CudaStagingTest, MayOutliveItsDevice) {
  Open();
  TestCall a(SmallCall(2, 40));
  auto staging = StageAll(a);
  slot_.reset();
  device_.reset();
  EXPECT_GT(api_->device_bytes_allocated(), 0);
  staging.reset();
  EXPECT_EQ(api_->device_bytes_allocated(), 0);
  EXPECT_EQ(api_->events(), 0);
}

class StagingFaultTest : public CudaStagingTest, public testing::WithParamInterface<const char*> {};

TEST_P(StagingFaultTest, AnErrorThatSparesTheDeviceCostsTheEarlyCopyAlone) {
  for (int nth = 0; nth < 6; ++nth) {
    slot_.reset();
    Open();
    TestCall a(SmallCall(2, 40));
    api_->FailFrom(GetParam(), nth, 1, absl::InternalError("refused"));
    auto staging = StageAll(a);
    api_->FailFrom(GetParam(), 0, 0, absl::OkStatus());
    const BatchResult result = Run(*slot_, {Item(a, staging.get())});
    EXPECT_TRUE(result.items[0].status.ok()) << result.items[0].status;
    a.ExpectRight();
    staging.reset();
    EXPECT_TRUE(device_->Health().ok());
    ExpectNothingLeft();
  }
}

TEST_P(StagingFaultTest, AStickyErrorEndsTheDevice) {
  Open();
  TestCall a(SmallCall(2, 40));
  api_->FailFrom(GetParam(), 1, 1000, server::StickyFault("illegal address"));
  auto staging = StageAll(a);
  EXPECT_TRUE(server::IsStickyFault(device_->Health())) << device_->Health();
  EXPECT_EQ(Stage(a), nullptr);
  EXPECT_FALSE(Run(*slot_, {Item(a, staging.get())}).items[0].status.ok());
  staging.reset();
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Operations, StagingFaultTest, testing::Values("CopyIn", "Record", "CreateEvent"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(CudaStagingTest, ABatchThatCannotWaitForItsCopiesFailsAndTheNextRuns) {
  Open();
  TestCall a(SmallCall(2, 40));
  auto staging = StageAll(a);
  api_->FailFrom("EnqueueWait", 0, 1, absl::InternalError("refused"));
  EXPECT_EQ(Run(*slot_, {Item(a, staging.get())}).items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Run(*slot_, {Item(a, staging.get())}).items[0].status.ok());
  a.ExpectRight();
}

TEST_F(CudaStagingTest, AnEventThatDoesNotAnswerIsAskedAgain) {
  Open();
  TestCall a(SmallCall(2, 40));
  auto staging = StageAll(a);
  AwaitCopies();
  api_->TakeCounts();
  api_->FailFrom("Passed", 0, 2, absl::InternalError("refused"));
  staging.reset();
  EXPECT_GT(staged(), 0);
  ExpectNothingLeft();
  EXPECT_FALSE(api_->TakeCounts().contains("AwaitStream"));
}

TEST_F(CudaStagingTest, WhoWaitsForAFailedCopyKeepsNobodyElse) {
  Open();
  TestCall a(SmallCall(2, 40)), b(SmallCall(2, 40), 2);
  std::unique_ptr<Staging> staged_b;
  absl::Notification failed_is_gone, others_go_on;
  std::thread waits, goes_on;
  {
    absl::MutexLock hold(&api_->copy_gate());
    auto staging = Stage(a);
    ASSERT_NE(staging, nullptr);
    staging->CopyIn(a.q());
    api_->FailFrom("CopyIn", 0, 1, absl::InternalError("refused"));
    staging->CopyIn(a.k());
    api_->TakeCounts();
    waits = std::thread([&, failed = std::move(staging)]() mutable {
      failed.reset();
      failed_is_gone.Notify();
    });
    const absl::Time until = absl::Now() + kLong;
    bool waited_for = false;
    while (!waited_for && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
      waited_for = api_->TakeCounts().contains("AwaitStream");
    }
    EXPECT_TRUE(waited_for);
    EXPECT_GT(staged(), 0);  // and metrics tell so at once
    goes_on = std::thread([&] {
      staged_b = StageAll(b);
      others_go_on.Notify();
    });
    EXPECT_TRUE(others_go_on.WaitForNotificationWithTimeout(kLong));
    EXPECT_FALSE(failed_is_gone.HasBeenNotified()) << "its copy is still on its way";
  }
  waits.join();
  goes_on.join();
  Run(*slot_, {Item(b, staged_b.get())});
  b.ExpectRight();
  staged_b.reset();
  ExpectNothingLeft();
}

TEST_F(CudaStagingTest, AFaultWhileACopyIsOnItsWayEndsTheDeviceAndFreesTheMemory) {
  Open();
  TestCall a(SmallCall(2, 40));
  auto staging = StageAll(a);
  api_->BreakDevice(server::StickyFault("unspecified launch failure"));
  staging.reset();
  EXPECT_TRUE(server::IsStickyFault(device_->Health()));
  ExpectNothingLeft();
}

TEST_F(CudaStagingTest, ThreadsStageRunAndDropBesideEachOther) {
  Open();
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const auto slot = device_->OpenSlot();
      std::vector<std::unique_ptr<TestCall>> kept;  // pinned memory stays, whoever has it
      for (uint32_t i = 0; i < 20; ++i) {
        kept.push_back(std::make_unique<TestCall>(SmallCall(1 + i % 3, 20 + 5 * t), 100 * t + i));
        TestCall& call = *kept.back();
        auto staging = Stage(call);
        const auto copy = [&](std::span<std::byte> tensor) {
          if (staging != nullptr) staging->CopyIn(tensor);
        };
        std::thread helper([&] { copy(call.k()); });
        copy(call.q());
        helper.join();
        if (i % 4 == t) continue;  // the caller is gone
        copy(call.v());
        EXPECT_TRUE(Run(*slot, {Item(call, staging.get())}).items[0].status.ok());
        call.ExpectRight();
      }
      AwaitCopies();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(staged(), 0);
}

}  // namespace
}  // namespace attend::test
