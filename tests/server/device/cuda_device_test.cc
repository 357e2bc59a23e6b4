// The GPU device over a GPU made of host memory: right answers, and faults of every kind.
#include "server/device/cuda/cuda_device.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/cuda/batch_plan.h"
#include "tests/server/device/call_fixture.h"
#include "tests/server/device/fake_cuda_api.h"

namespace attend::test {
namespace {

using server::BatchItem;
using server::BatchResult;
using server::CudaDeviceOptions;
using server::Device;
using server::DeviceSlot;
using server::MakeCudaDevice;

constexpr absl::Duration kLong = absl::Seconds(20);

// A batch under way.
struct Flight {
  std::vector<BatchItem> items;
  BatchResult result;
  absl::Notification done;

  void Run(DeviceSlot& slot) {
    slot.Run(items, [this](BatchResult r) {
      result = std::move(r);
      done.Notify();
    });
  }
  bool Wait() { return done.WaitForNotificationWithTimeout(kLong); }
};

class CudaDeviceTest : public testing::Test {
 protected:
  void Open(CudaDeviceOptions options = {}) {
    if (options.device_bytes == 0) options.device_bytes = int64_t{16} << 20;
    auto device = MakeCudaDevice(api_, options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  const std::shared_ptr<FakeCudaApi> api_ = std::make_shared<FakeCudaApi>();
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, ComputesUnequalCallsInOneBatch) {
  Open();
  const TestCall a(SmallCall(2, 20), 1), b(SmallCall(1, 3), 2), c(SmallCall(1, 41, 3), 3);
  const auto slot = device_->OpenSlot();
  Flight flight;
  flight.items = {a.item(), b.item(), c.item()};
  flight.Run(*slot);
  ASSERT_TRUE(flight.Wait());
  for (const server::ItemResult& item : flight.result.items) EXPECT_TRUE(item.status.ok()) << item.status;
  a.ExpectRight();
  b.ExpectRight();
  c.ExpectRight();
  EXPECT_EQ(api_->launches(), 1);
  EXPECT_EQ(api_->copies_in(), 3);
  EXPECT_GT(flight.result.kernel_ns, 0);
  EXPECT_GE(flight.result.copy_in_bytes, 3 * (a.call().q_bytes() + b.call().q_bytes() + c.call().q_bytes()));
  EXPECT_GE(flight.result.copy_out_bytes, a.call().out_bytes() + b.call().out_bytes() + c.call().out_bytes());
  // 2 * pairs * (D + Dv), causal: 20 * 21 / 2 pairs, 2 heads, 2 sequences.
  EXPECT_EQ(flight.result.items[0].work.flops, 2 * 210 * 2 * 2 * 32);
}

TEST_F(CudaDeviceTest, ABatchTakesAsFewOperationsHoweverManyRequestsItHolds) {
  Open();
  std::vector<std::unique_ptr<TestCall>> calls;
  for (uint32_t i = 0; i < 24; ++i) calls.push_back(std::make_unique<TestCall>(SmallCall(1, 3 + i), i));
  const auto slot = device_->OpenSlot();
  for (const size_t size : {1, 24}) {
    Flight flight;
    for (size_t i = 0; i < size; ++i) flight.items.push_back(calls[i]->item());
    api_->TakeCounts();
    flight.Run(*slot);
    ASSERT_TRUE(flight.Wait());
    EXPECT_THAT(api_->TakeCounts(),
                testing::UnorderedElementsAre(testing::Pair("CopyIn", 1), testing::Pair("Enqueue", 1),
                                              testing::Pair("CopyOut", 1), testing::Pair("Record", 4),
                                              testing::Pair("Passed", 1), testing::Pair("ElapsedNs", 3)));
    calls[size - 1]->ExpectRight();
  }
}

TEST_F(CudaDeviceTest, KernelsOfShortRequestsAreUrgent) {
  Open();
  const TestCall a(SmallCall(1, 20));
  const auto slot = device_->OpenSlot();
  for (const bool is_short : {true, false}) {
    Flight flight;
    flight.items = {a.item()};
    flight.items[0].short_request = is_short;
    flight.Run(*slot);
    ASSERT_TRUE(flight.Wait());
    EXPECT_EQ(api_->urgent_launches(), 1);
  }
  EXPECT_EQ(api_->launches(), 2);
}

TEST_F(CudaDeviceTest, ALongCallRunsAsSeveralLaunchesAndIsStillRight) {
  CudaDeviceOptions options;
  options.launch_max = absl::Nanoseconds(1);
  Open(options);
  const TestCall a(SmallCall(2, 30, 4));
  const auto slot = device_->OpenSlot();
  Flight flight;
  flight.items = {a.item()};
  flight.Run(*slot);
  ASSERT_TRUE(flight.Wait());
  a.ExpectRight();
  EXPECT_EQ(api_->launches(), 8);  // one a head and sequence
}

TEST_F(CudaDeviceTest, BatchesThatDoNotFitTogetherWaitForMemory) {
  const TestCall a(SmallCall(1, 64), 1), b(SmallCall(1, 64), 2), c(SmallCall(1, 64), 3);
  CudaDeviceOptions options;
  options.device_bytes = server::TensorDeviceBytes(a.call()) + 8192;
  options.slots = 3;
  Open(options);
  const auto s1 = device_->OpenSlot(), s2 = device_->OpenSlot(), s3 = device_->OpenSlot();
  Flight f1, f2, f3;
  f1.items = {a.item()};
  f2.items = {b.item()};
  f3.items = {c.item()};
  {
    absl::MutexLock hold(&api_->gate());
    f1.Run(*s1);
    f2.Run(*s2);
    f3.Run(*s3);
    EXPECT_FALSE(f2.done.HasBeenNotified());
    EXPECT_EQ(api_->copies_in(), 1);  // the others have no memory to go to
  }
  ASSERT_TRUE(f1.Wait());
  ASSERT_TRUE(f2.Wait());
  ASSERT_TRUE(f3.Wait());
  a.ExpectRight();
  b.ExpectRight();
  c.ExpectRight();
}

TEST_F(CudaDeviceTest, ABatchThatNeverFitsIsRefusedAndTheNextRuns) {
  const TestCall small(SmallCall(1, 8)), large(SmallCall(4, 128));
  CudaDeviceOptions options;
  options.device_bytes = server::TensorDeviceBytes(small.call()) + 8192;
  Open(options);
  const auto slot = device_->OpenSlot();
  Flight first, second;
  first.items = {large.item()};
  first.Run(*slot);
  ASSERT_TRUE(first.Wait());
  EXPECT_EQ(first.result.items[0].status.code(), absl::StatusCode::kResourceExhausted);
  second.items = {small.item()};
  second.Run(*slot);
  ASSERT_TRUE(second.Wait());
  small.ExpectRight();
}

class CudaFaultTest : public CudaDeviceTest, public testing::WithParamInterface<const char*> {};

TEST_P(CudaFaultTest, AnErrorThatSparesTheDeviceFailsTheBatchAndTheNextRuns) {
  Open();
  const auto slot = device_->OpenSlot();
  api_->FailFrom(GetParam(), 0, 1, absl::InternalError("refused"));
  const TestCall a(SmallCall(1, 16));
  Flight first, second;
  first.items = {a.item()};
  first.Run(*slot);
  ASSERT_TRUE(first.Wait());
  EXPECT_EQ(first.result.items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(device_->Health().ok());
  second.items = {a.item()};
  second.Run(*slot);
  ASSERT_TRUE(second.Wait());
  EXPECT_TRUE(second.result.items[0].status.ok());
  a.ExpectRight();
}

TEST_P(CudaFaultTest, AStickyErrorEndsTheDevice) {
  Open();
  const auto slot = device_->OpenSlot();
  api_->FailFrom(GetParam(), 0, 1000, server::StickyFault("illegal address"));
  const TestCall a(SmallCall(1, 16));
  Flight flight;
  flight.items = {a.item()};
  flight.Run(*slot);
  ASSERT_TRUE(flight.Wait());
  EXPECT_EQ(flight.result.items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(server::IsStickyFault(device_->Health())) << device_->Health();
}

INSTANTIATE_TEST_SUITE_P(Operations, CudaFaultTest,
                         testing::Values("CopyIn", "CopyOut", "Enqueue", "Record", "Passed"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(CudaDeviceTest, ABatchWhoseLastEventFailsEndsWithItsStream) {
  Open();
  const auto slot = device_->OpenSlot();
  const TestCall a(SmallCall(1, 16));
  api_->FailFrom("Record", 3, 1, absl::InternalError("refused"));  // the fourth is the last
  Flight flight;
  flight.items = {a.item()};
  flight.Run(*slot);
  ASSERT_TRUE(flight.Wait());
  EXPECT_EQ(flight.result.items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(device_->Health().ok());
  a.ExpectRight();  // nothing writes to it any more
}

TEST_F(CudaDeviceTest, AFaultInsideARunningKernelEndsEveryBatchInFlight) {
  Open();
  const auto s1 = device_->OpenSlot(), s2 = device_->OpenSlot();
  const TestCall a(SmallCall(1, 16)), b(SmallCall(1, 17));
  Flight f1, f2;
  f1.items = {a.item()};
  f2.items = {b.item()};
  // As the runtime does: no event passes after the fault.
  api_->BreakDevice(server::StickyFault("unspecified launch failure"));
  f1.Run(*s1);
  f2.Run(*s2);
  ASSERT_TRUE(f1.Wait());
  ASSERT_TRUE(f2.Wait());
  EXPECT_EQ(f1.result.items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(f2.result.items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(server::IsStickyFault(device_->Health()));
}

TEST_F(CudaDeviceTest, MemoryThatCannotBeHadIsAnErrorAtStart) {
  server::CudaDeviceOptions options;
  options.device_bytes = int64_t{48} << 20;
  const std::pair<const char*, const char*> kinds[] = {
      {"AllocateDevice", "50331648 bytes of device memory: out of memory"},
      {"AllocatePinned", "67108864 bytes of pinned memory: out of memory"}};
  for (const auto& [operation, message] : kinds) {
    api_->FailFrom(operation, 0, 1, absl::ResourceExhaustedError("out of memory"));
    EXPECT_EQ(MakeCudaDevice(api_, options).status(), absl::ResourceExhaustedError(message));
    EXPECT_EQ(api_->device_bytes_allocated(), 0);
  }
}

TEST_F(CudaDeviceTest, TakesNineTenthsOfWhatIsFreeAndGivesItBack) {
  auto device = MakeCudaDevice(api_, {});
  ASSERT_TRUE(device.ok());
  EXPECT_NEAR(static_cast<double>((*device)->device_bytes_max()), 0.9 * (64 << 20), 8192);
  device->reset();
  EXPECT_EQ(api_->device_bytes_allocated(), 0);
}

TEST_F(CudaDeviceTest, TellsItsMemory) {
  Open();
  const TestCall a(SmallCall(1, 64));
  EXPECT_EQ(device_->memory().total, int64_t{128} << 20);
  EXPECT_EQ(device_->memory().free, int64_t{64} << 20);  // as the driver says
  EXPECT_EQ(device_->memory().pool, int64_t{16} << 20);
  EXPECT_EQ(device_->memory().used, 0);
  const auto slot = device_->OpenSlot();
  Flight flight;
  flight.items = {a.item()};
  {
    absl::MutexLock hold(&api_->gate());
    flight.Run(*slot);
    EXPECT_GE(device_->memory().used, server::PlanBatch(flight.items).bytes);
  }
  ASSERT_TRUE(flight.Wait());
  EXPECT_EQ(device_->memory().used, 0);
  EXPECT_GE(device_->memory().peak, server::PlanBatch(flight.items).bytes);
}

TEST_F(CudaDeviceTest, RefusesWhatNoKernelTakes) {
  Open();
  Call call = SmallCall(1, 8);
  call.head_dim = 12;
  EXPECT_EQ(device_->Measure(call).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaDeviceTest, CountsAtLeastWhatABatchTakes) {
  Open();
  const TestCall a(SmallCall(3, 50)), b(SmallCall(1, 9));
  const std::vector<BatchItem> items = {a.item(), b.item()};
  EXPECT_GE(device_->Measure(a.call())->device_bytes + device_->Measure(b.call())->device_bytes,
            server::PlanBatch(items).bytes + 4 * 1024);
}

}  // namespace
}  // namespace attend::test
