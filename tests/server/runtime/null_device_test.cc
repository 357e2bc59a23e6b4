#include "server/device/null_device.h"

#include <algorithm>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace attend::server {
namespace {

TEST(NullDevice, AnswersZerosOverWhateverTheBlocksHeld) {
  Call call;
  call.batch = 2;
  call.q_heads = 4;
  call.kv_heads = 2;
  call.q_len = 3;
  call.kv_len = 5;
  call.head_dim = 8;
  call.v_head_dim = 16;
  call.kernel = Kernel::kNaive;
  call.return_lse = call.return_weights = true;
  std::vector<float> out(call.out_bytes() / 4, 7.0f), lse(call.lse_bytes() / 4, 7.0f),
      weights(call.weights_bytes() / 4, 7.0f);
  CallTensors tensors;
  tensors.out = out.data();
  tensors.lse = lse.data();
  tensors.weights = weights.data();
  const BatchItem item{&call, &tensors};

  const auto device = CreateNullDevice();
  EXPECT_TRUE(device->Measure(call).ok());
  BatchResult result;
  device->OpenSlot()->Run({&item, 1}, [&result](BatchResult r) { result = std::move(r); });
  ASSERT_EQ(result.items.size(), 1u);
  EXPECT_TRUE(result.items[0].status.ok());
  for (const auto* tensor : {&out, &lse, &weights}) {
    EXPECT_FALSE(tensor->empty());
    EXPECT_TRUE(std::all_of(tensor->begin(), tensor->end(), [](float f) { return f == 0.0f; }));
  }
}

TEST(NullDevice, RefusesWhatTheKernelsRefuse) {
  Call call;
  call.batch = 1;
  call.q_heads = call.kv_heads = 1;
  call.q_len = call.kv_len = 4;
  call.head_dim = 12;
  call.v_head_dim = 8;
  const auto device = CreateNullDevice();
  EXPECT_EQ(device->Measure(call).status().code(), absl::StatusCode::kInvalidArgument);
  call.head_dim = 8;
  call.kernel = Kernel::kFlash;
  call.return_weights = true;
  EXPECT_EQ(device->Measure(call).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(NullDevice, LaunchesThatTakeTimeEndOneAfterAnother) {
  NullDeviceOptions options;
  options.launch_time = absl::Milliseconds(5);
  const auto device = CreateNullDevice(options);
  const std::unique_ptr<DeviceSlot> slots[] = {device->OpenSlot(), device->OpenSlot()};
  Call call;
  const CallTensors tensors;
  const BatchItem item{&call, &tensors};
  absl::Mutex mutex;
  std::vector<absl::Time> ends;
  const absl::Time start = absl::Now();
  for (const auto& slot : slots) {
    slot->Run({&item, 1}, [&](BatchResult result) {
      EXPECT_EQ(result.kernel_ns, 5000000);
      absl::MutexLock lock(&mutex);
      ends.push_back(absl::Now());
    });
  }
  absl::MutexLock lock(&mutex);
  const auto both = [&] { return ends.size() == 2; };
  mutex.Await(absl::Condition(&both));
  EXPECT_GE(ends[0] - start, options.launch_time);
  EXPECT_GE(ends[1] - start, 2 * options.launch_time);
}

}  // namespace
}  // namespace attend::server
