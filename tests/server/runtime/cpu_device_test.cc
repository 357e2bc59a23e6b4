// The CPU device behind the scheduler: right answers, faults of single items, and batch invariance.
#include "server/device/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

// A call with its tensors in memory of its own, filled from a seed.
struct Request {
  Call call;
  CallTensors tensors;
  std::vector<std::byte> inputs;
  std::vector<std::byte> outputs;
};

// Bytes of random numbers of the call's type: fp32, or fp16 and bf16 patterns of small finite values.
void Fill(DataType dtype, std::mt19937& random, std::byte* data, int64_t bytes) {
  std::normal_distribution<float> normal;
  for (int64_t at = 0; at < bytes; at += SizeOf(dtype)) {
    const float value = normal(random);
    if (dtype == DataType::kFp32) {
      memcpy(data + at, &value, 4);
    } else if (dtype == DataType::kBf16) {
      uint32_t bits;
      memcpy(&bits, &value, 4);
      const uint16_t high = static_cast<uint16_t>(bits >> 16);
      memcpy(data + at, &high, 2);
    } else {
      // Sign, an exponent from 2^-4 to 2^0, any mantissa.
      const uint16_t half =
          static_cast<uint16_t>((random() & 0x8000) | (11 + random() % 5) << 10 | (random() & 0x3ff));
      memcpy(data + at, &half, 2);
    }
  }
}

std::unique_ptr<Request> MakeRequest(const Call& call, uint32_t seed) {
  auto r = std::make_unique<Request>();
  r->call = call;
  r->inputs.resize(call.q_bytes() + call.k_bytes() + call.v_bytes());
  r->outputs.resize(call.out_bytes() + call.lse_bytes() + call.weights_bytes(), std::byte{0xab});
  std::mt19937 random(seed);
  Fill(call.dtype, random, r->inputs.data(), static_cast<int64_t>(r->inputs.size()));
  std::byte* in = r->inputs.data();
  std::byte* out = r->outputs.data();
  r->tensors.q = in;
  r->tensors.k = in + call.q_bytes();
  r->tensors.v = in + call.q_bytes() + call.k_bytes();
  r->tensors.out = out;
  if (call.return_lse) r->tensors.lse = reinterpret_cast<float*>(out + call.out_bytes());
  if (call.return_weights) {
    r->tensors.weights = reinterpret_cast<float*>(out + call.out_bytes() + call.lse_bytes());
  }
  return r;
}

// Few kinds, so that many requests agree; shapes, masks and scales of all sorts.
Call RandomCall(std::mt19937& random) {
  Call call;
  call.kernel = std::vector{Kernel::kAuto, Kernel::kFlash, Kernel::kNaive, Kernel::kOnline}[random() % 4];
  call.dtype = std::vector{DataType::kFp32, DataType::kFp16, DataType::kBf16}[random() % 3];
  call.layout = random() % 2 == 0 ? Layout::kBhld : Layout::kBlhd;
  call.batch = 1 + random() % 3;
  call.kv_heads = 1 + random() % 2;
  call.q_heads = call.kv_heads * (1 + random() % 3);
  call.head_dim = 32;
  call.v_head_dim = random() % 4 == 0 ? 64 : 32;
  call.q_len = 1 + random() % 90;
  call.kv_len = 1 + random() % 200;
  if (random() % 3 == 0) call.scale = 0.01f * static_cast<float>(random() % 30);
  call.causal = std::vector{Causal::kNone, Causal::kBottomRight, Causal::kTopLeft}[random() % 3];
  if (random() % 4 == 0) call.window_left = random() % 50;
  if (random() % 4 == 0) call.softcap = 5.0f;
  call.return_lse = random() % 2 == 0;
  call.return_weights = call.kernel != Kernel::kFlash && random() % 4 == 0;
  return call;
}

std::unique_ptr<Scheduler> MakeCpuScheduler(const SchedulerOptions& options, SchedulerObserver* observer,
                                            int64_t workspace = int64_t{64} << 20) {
  CpuDeviceOptions cpu;
  cpu.threads = 2;
  cpu.workspace_bytes_max = workspace;
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(*CreateCpuDevice(cpu));
  return Scheduler::Create(options, std::move(devices), observer);
}

void Submit(Scheduler& scheduler, Answers& answers, const Request& request, const std::string& id,
            const std::string& fair_key) {
  auto admission = scheduler.Admit(request.call, static_cast<int64_t>(request.outputs.size()), {});
  ASSERT_TRUE(admission.ok()) << admission.status();
  auto job = std::make_unique<Job>();
  job->call = request.call;
  job->tensors = request.tensors;
  job->request_id = id;
  job->fair_key = fair_key;
  job->done = answers.Done();
  scheduler.Submit(std::move(job), *std::move(admission));
}

TEST(CpuDevice, ComputesAndReports) {
  // Equal keys: the weights are uniform and the answer is the mean of v.
  Call call;
  call.batch = 1;
  call.q_heads = call.kv_heads = 1;
  call.q_len = 2;
  call.kv_len = 4;
  call.head_dim = call.v_head_dim = 8;
  call.return_lse = true;
  const auto request = MakeRequest(call, 1);
  auto* const k = reinterpret_cast<float*>(request->inputs.data() + call.q_bytes());
  auto* const v = reinterpret_cast<float*>(request->inputs.data() + call.q_bytes() + call.k_bytes());
  std::fill(k, k + 4 * 8, 0.0f);
  for (int i = 0; i < 4 * 8; ++i) v[i] = static_cast<float>(i / 8);
  Answers answers;
  RecordingObserver observer;
  const auto scheduler = MakeCpuScheduler({}, &observer);
  Submit(*scheduler, answers, *request, "a", "k");
  answers.Await(1);
  ASSERT_TRUE(answers.status("a").ok()) << answers.status("a");
  const auto* const out = static_cast<const float*>(request->tensors.out);
  for (int i = 0; i < 2 * 8; ++i) EXPECT_FLOAT_EQ(out[i], 1.5f);
  for (int i = 0; i < 2; ++i) EXPECT_FLOAT_EQ(request->tensors.lse[i], std::log(4.0f));
  const JobReport report = answers.report("a");
  EXPECT_EQ(report.device, "cpu");
  EXPECT_EQ(report.kernel, Kernel::kFlash);
  EXPECT_EQ(report.work.flops, 2 * (2 * 4) * (8 + 8));
  EXPECT_EQ(report.batch_requests, 1);
  EXPECT_GT(report.kernel_ns, 0);
}

TEST(CpuDevice, NaiveBeyondTheWorkspaceIsRefusedAtAdmission) {
  Call call;
  call.kernel = Kernel::kNaive;
  call.batch = 1;
  call.q_heads = call.kv_heads = 4;
  call.q_len = call.kv_len = 4096;
  call.head_dim = call.v_head_dim = 64;
  const auto scheduler = MakeCpuScheduler({}, nullptr, 8 << 20);
  const absl::Status refused = scheduler->Admit(call, 0, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetReason(refused), "REQUEST_TOO_LARGE");
  call.kernel = Kernel::kFlash;
  EXPECT_TRUE(scheduler->Admit(call, 0, {}).ok());
}

// A batch needs at most the sum of its calls' device bytes: the scheduler counts on it.
TEST(CpuDevice, DeviceBytesOfABatchAreAtMostTheSum) {
  std::mt19937 random(11);
  CpuDeviceOptions options;
  options.threads = 3;
  const auto device = *CreateCpuDevice(options);
  for (int i = 0; i < 50; ++i) {
    const Call a = RandomCall(random);
    Call twice = a;
    twice.batch *= 2;
    EXPECT_LE(device->Measure(twice)->device_bytes, 2 * device->Measure(a)->device_bytes);
    EXPECT_GT(device->Measure(a)->time, absl::ZeroDuration());
  }
}

// A few bytes can name as many sequences as the server takes: were they predicted to cost nothing, batches
// would hold millions of them.
TEST(CpuDevice, EmptySequencesAreNotFree) {
  CpuDeviceOptions options;
  options.threads = 2;
  const auto device = *CreateCpuDevice(options);
  Call call;
  call.q_heads = call.kv_heads = 1;
  call.head_dim = call.v_head_dim = 8;
  call.batch = 1;
  const absl::Duration one = device->Measure(call)->time;
  call.batch = 65536;
  EXPECT_GT(device->Measure(call)->time, 1000 * one);
}

// Design: the bits of an answer depend on the request alone, not on what it was batched with, which slot it
// took, or how busy the server was. Alone, in a crowd, and under load from several threads.
TEST(CpuDevice, BatchInvariance) {
  constexpr int kRequests = 120, kThreads = 4;
  std::mt19937 random(20260);
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::vector<std::byte>> alone;
  for (int i = 0; i < kRequests; ++i) requests.push_back(MakeRequest(RandomCall(random), i));

  {
    const auto scheduler = MakeCpuScheduler({}, nullptr);
    Answers answers;
    for (int i = 0; i < kRequests; ++i) {
      Submit(*scheduler, answers, *requests[i], std::to_string(i), "k");
      answers.Await(i + 1);
      ASSERT_TRUE(answers.status(std::to_string(i)).ok()) << answers.status(std::to_string(i));
      EXPECT_EQ(answers.report(std::to_string(i)).batch_requests, 1);
      alone.push_back(requests[i]->outputs);
    }
  }
  const auto reset_outputs = [&] {
    for (auto& r : requests) std::fill(r->outputs.begin(), r->outputs.end(), std::byte{0xcd});
  };
  const auto expect_same = [&](const char* where) {
    for (int i = 0; i < kRequests; ++i)
      EXPECT_EQ(requests[i]->outputs, alone[i]) << where << ", request " << i;
  };

  {
    // Company is awaited for so long that whatever agrees runs in one launch.
    SchedulerOptions options;
    options.max_queue_delay = absl::Milliseconds(200);
    const auto scheduler = MakeCpuScheduler(options, nullptr);
    Answers answers;
    reset_outputs();
    for (int i = 0; i < kRequests; ++i) Submit(*scheduler, answers, *requests[i], std::to_string(i), "k");
    answers.Await(kRequests);
    int64_t largest = 0;
    for (int i = 0; i < kRequests; ++i) {
      largest = std::max(largest, answers.report(std::to_string(i)).batch_requests);
    }
    EXPECT_GT(largest, 3);
    expect_same("in a crowd");
  }

  const auto scheduler = MakeCpuScheduler({}, nullptr);
  Answers answers;
  reset_outputs();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kRequests; i += kThreads) {
        Submit(*scheduler, answers, *requests[i], std::to_string(i), std::to_string(t));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  answers.Await(kRequests);
  expect_same("under load");
}

}  // namespace
}  // namespace attend::server
