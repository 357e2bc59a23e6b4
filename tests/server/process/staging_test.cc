// Large requests through a whole server whose GPUs are made of host memory: off the wire, to the GPU while
// the rest is parsed (--device-staging-bytes-max), through the scheduler and back. Answers are held against
// plain sums in double; after each test nothing may be left anywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/server/device/fake_cuda_api.h"
#include "tests/server/process/fixture.h"
#include "tests/server/process/raw_http2.h"

namespace attend::server {
namespace {

using test::FakeCudaApi;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kHeads = 2, kRows = 2, kDim = 64;
constexpr int64_t kBytesPerKey = 2 * kHeads * kDim * 4;
// The inputs of a request with so many keys take 8 MiB, from which on they are staged. Two of these do not
// fit into what is there for it, a sixteenth of the GPU.
constexpr int64_t kKeysMin = (8 * kMiB - kHeads * kRows * kDim * 4) / kBytesPerKey;
constexpr int64_t kDeviceBytes = 160 * kMiB;

// softmax(q * k^T / 8) * v.
std::vector<double> Attention(const std::vector<float>& q, const std::vector<float>& k,
                              const std::vector<float>& v, int64_t keys) {
  std::vector<double> out;
  for (int64_t row = 0; row < kHeads * kRows; ++row) {
    const float* const head_k = &k[row / kRows * keys * kDim];
    const float* const head_v = &v[row / kRows * keys * kDim];
    double sum = 0;
    std::vector<double> weighted(kDim);
    for (int64_t key = 0; key < keys; ++key) {
      double score = 0;
      for (int64_t d = 0; d < kDim; ++d) score += double{q[row * kDim + d]} * head_k[key * kDim + d];
      const double weight = std::exp(score / 8);
      sum += weight;
      for (int64_t d = 0; d < kDim; ++d) weighted[d] += weight * head_v[key * kDim + d];
    }
    for (const double x : weighted) out.push_back(x / sum);
  }
  return out;
}

// A request of random numbers between -1 and 1, and its answer.
struct LargeCall {
  explicit LargeCall(uint64_t seed, int64_t keys = kKeysMin) {
    uint64_t state = seed * 2 + 1;
    const auto random = [&](int64_t rows) {
      std::vector<float> numbers(kHeads * rows * kDim);
      for (float& x : numbers) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
      }
      return numbers;
    };
    const auto set = [](v1::TensorSpec* spec, std::string* data, const std::vector<float>& numbers) {
      spec->set_dtype(v1::DATA_TYPE_FP32);
      const auto size = static_cast<int64_t>(numbers.size());
      for (const int64_t extent : {int64_t{1}, kHeads, size / (kHeads * kDim), kDim}) spec->add_shape(extent);
      data->assign(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
    };
    const std::vector<float> q = random(kRows), k = random(keys), v = random(keys);
    set(request.mutable_q(), request.mutable_q_data(), q);
    set(request.mutable_k(), request.mutable_k_data(), k);
    set(request.mutable_v(), request.mutable_v_data(), v);
    expected = Attention(q, k, v, keys);
  }

  void ExpectRight(const v1::AttendResponse& response) const {
    ASSERT_EQ(response.out_data().size(), 4 * expected.size());
    std::vector<float> out(expected.size());
    std::memcpy(out.data(), response.out_data().data(), response.out_data().size());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-6) << i;
  }

  v1::AttendRequest request;
  std::vector<double> expected;
};

class StagingServiceTest : public testing::Test {
 protected:
  void Start(int gpus) {
    for (int i = 0; i < gpus; ++i) gpus_.push_back(std::make_shared<FakeCudaApi>(i));
    ServerOptions options = TestOptions();
    options.device = "cuda";
    options.device_bytes_max = kDeviceBytes;
    options.wire_threads = 4;
    server_ = StartServer(options, test::FakeGpus(gpus_));
    channel_ = Connect(*server_);
    for (const auto& gpu : gpus_) {
      warm_copies_.push_back(gpu->copies_in());
      events_.push_back(gpu->events());
    }
  }

  void TearDown() override {
    for (size_t i = 0; i < gpus_.size(); ++i) {
      EXPECT_TRUE(Eventually([&] { return Memory("used", i) == 0; })) << Memory("used", i);
      EXPECT_TRUE(Eventually([&] { return Memory("staging_used", i) == 0; })) << Memory("staging_used", i);
      EXPECT_EQ(gpus_[i]->events(), events_[i]);
      EXPECT_EQ(Memory("staging", i), kDeviceBytes / 16);
      EXPECT_LE(Memory("staging_peak", i), Memory("staging", i));
    }
    for (const char* series :
         {"attend_inflight_requests", "attend_receive_budget_bytes{kind=\"used\"}", "attend_queue_depth",
          "attend_pinned_memory_bytes{kind=\"used\"}", "attend_queue_bytes"}) {
      EXPECT_TRUE(Eventually([&] { return MetricValue(*server_, series) == 0; })) << series;
    }
    channel_.reset();
    server_.reset();
    for (const auto& gpu : gpus_) {
      EXPECT_EQ(gpu->device_bytes_allocated(), 0);
      EXPECT_EQ(gpu->events(), 0);
    }
  }

  double Memory(const std::string& kind, size_t gpu = 0) const {
    return MetricValue(*server_, absl::StrCat("attend_device_memory_bytes{device=\"cuda:", gpu,
                                              "\",uuid=\"GPU-fake\",kind=\"", kind, "\"}"));
  }
  // Copies to a GPU since the start: three of a request that is staged, q, k and v, and one of another, whose
  // tensors its batch copies together.
  int64_t copies(size_t gpu = 0) const { return gpus_[gpu]->copies_in() - warm_copies_[gpu]; }
  void AwaitCopies(int64_t count, size_t gpu = 0) const {
    EXPECT_TRUE(Eventually([&] { return copies(gpu) == count; })) << copies(gpu);
  }

  grpc::Status Ask(const v1::AttendRequest& request, v1::AttendResponse* response,
                   const std::function<void(grpc::ClientContext*)>& adjust = {}) const {
    return Attend(*channel_, request, response, [&](grpc::ClientContext* context) {
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      if (adjust) adjust(context);
    });
  }
  // Asks, and cancels the call when `leave` returns, which runs beside it.
  grpc::Status AskAndCancel(const v1::AttendRequest& request, v1::AttendResponse* response,
                            const std::function<void()>& leave) const {
    std::thread cancels;
    return Attend(
        *channel_, request, response,
        [&](grpc::ClientContext* context) {
          context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
          cancels = std::thread([&leave, context] {
            leave();
            context->TryCancel();
          });
        },
        [&](const grpc::ClientContext&) { cancels.join(); });  // while the context lives
  }
  // Asks, and holds the answer against what is expected; gives the device that it came from.
  std::string ExpectRightAnswer(const LargeCall& call) const {
    v1::AttendResponse response;
    const grpc::Status status = Ask(call.request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (status.ok()) call.ExpectRight(response);
    return response.report().device();
  }

  std::vector<std::shared_ptr<FakeCudaApi>> gpus_;
  std::vector<int64_t> warm_copies_;
  std::vector<int> events_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(StagingServiceTest, TensorsOfLargeRequestsAreCopiedOneByOneAndOthersByTheirBatch) {
  Start(1);
  ExpectRightAnswer(LargeCall(1, kKeysMin - 1));
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(Memory("staging_peak"), 0);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    ExpectRightAnswer(LargeCall(seed, kKeysMin + static_cast<int64_t>(seed) - 2));
    EXPECT_EQ(copies(), 1 + 3 * (static_cast<int64_t>(seed) - 1));
  }
  EXPECT_GE(Memory("staging_peak"), 8 * kMiB);
}

// Both batches wait for copies: one for those ahead of it, the other for its own.
TEST_F(StagingServiceTest, WhatFindsNoRoomIsCopiedByItsBatch) {
  Start(1);
  const LargeCall a(1), b(2), c(3);
  std::thread asks_a, asks_b;
  {
    absl::MutexLock hold(&gpus_[0]->copy_gate());
    asks_a = std::thread([&] { ExpectRightAnswer(a); });
    AwaitCopies(3);
    asks_b = std::thread([&] { ExpectRightAnswer(b); });
    AwaitCopies(3 + 1);
  }
  asks_a.join();
  asks_b.join();
  ExpectRightAnswer(c);
  EXPECT_EQ(copies(), 3 + 1 + 3) << "there is room again";
}

TEST_F(StagingServiceTest, AnswersComeInTheOrderInWhichDevicesEnd) {
  Start(2);
  const LargeCall a(1), b(2), c(3);
  std::atomic<bool> answered{false};
  std::thread asks_a;
  {
    absl::MutexLock hold(&gpus_[0]->gate());
    asks_a = std::thread([&] {
      EXPECT_EQ(ExpectRightAnswer(a), "cuda:0");
      answered = true;
    });
    AwaitCopies(3, 0);
    EXPECT_EQ(ExpectRightAnswer(b), "cuda:1");
    EXPECT_EQ(ExpectRightAnswer(c), "cuda:1");
    EXPECT_EQ(copies(1), 2 * 3);
    EXPECT_FALSE(answered);
  }
  asks_a.join();
}

TEST_F(StagingServiceTest, MemoryOfACancelledRequestIsNobodysUntilItsCopiesHavePassed) {
  Start(1);
  const LargeCall a(1), b(2), c(3);
  std::thread asks_b;
  {
    absl::MutexLock hold(&gpus_[0]->copy_gate());
    const grpc::Status status = AskAndCancel(a.request, nullptr, [this] { AwaitCopies(3); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_GE(Memory("staging_used"), 8 * kMiB);
    asks_b = std::thread([&] { ExpectRightAnswer(b); });
    AwaitCopies(3 + 1);
  }
  asks_b.join();
  EXPECT_TRUE(Eventually([&] { return Memory("staging_used") == 0; }));
  ExpectRightAnswer(c);
  EXPECT_EQ(copies(), 3 + 1 + 3);
}

TEST_F(StagingServiceTest, ARequestThatIsFoundWrongIsAnsweredWithoutWaitingForItsCopies) {
  Start(1);
  const LargeCall a(1);
  v1::AttendRequest wrong = LargeCall(2).request;
  wrong.mutable_mask()->set_dtype(v1::DATA_TYPE_BOOL);
  for (const int64_t extent : {int64_t{1}, int64_t{1}, int64_t{1}, kKeysMin}) {
    wrong.mutable_mask()->add_shape(extent);
  }
  wrong.set_mask_data(std::string(kKeysMin - 1, '\1') + '\2');
  {
    absl::MutexLock hold(&gpus_[0]->copy_gate());
    const grpc::Status status = Ask(wrong, nullptr);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), testing::HasSubstr("must be 0 or 1"));
    EXPECT_EQ(copies(), 4);
    EXPECT_GE(Memory("staging_used"), 8 * kMiB);
    EXPECT_EQ(MetricValue(*server_, "attend_pinned_memory_bytes{kind=\"used\"}"), 0);
  }
  EXPECT_TRUE(Eventually([&] { return Memory("staging_used") == 0; }));
  ExpectRightAnswer(a);
  EXPECT_EQ(copies(), 4 + 3);
}

TEST_F(StagingServiceTest, HalfOfARequestTouchesNoGpu) {
  Start(1);
  LargeCall a(1);
  const std::string message = a.request.SerializeAsString();
  const auto await_callers = [this](double count) {
    EXPECT_TRUE(Eventually([&] { return MetricValue(*server_, "attend_inflight_requests") == count; }));
  };
  std::vector<std::unique_ptr<RawCaller>> callers;
  for (const size_t bytes : {size_t{0}, size_t{5}, size_t{1000}, size_t{50000}}) {
    callers.push_back(std::make_unique<RawCaller>(server_->grpc_port()));
    callers.back()->SendHeaders({{"attend-request-bytes", absl::StrCat(message.size())}});
    callers.back()->SendMessage(message, bytes);
  }
  await_callers(4);
  callers.clear();
  await_callers(0);
  v1::AttendRequest lacks = a.request;
  lacks.mutable_v_data()->resize(lacks.v_data().size() / 2);
  EXPECT_EQ(Ask(lacks, nullptr).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(copies(), 0);
  EXPECT_EQ(Memory("staging_peak"), 0);
  ExpectRightAnswer(a);
  EXPECT_EQ(copies(), 3);
}

// Callers that go at any time between the first byte and the answer, beside others that stay.
TEST_F(StagingServiceTest, AStormOfCallersThatGoLeavesTheAnswersOfOthersRight) {
  constexpr int kCallers = 4, kCalls = 12;
  Start(2);
  std::vector<std::unique_ptr<LargeCall>> calls;
  for (int i = 0; i < kCallers; ++i) {
    calls.push_back(std::make_unique<LargeCall>(static_cast<uint64_t>(i), kKeysMin + 100 * (i - 1)));
  }
  std::atomic<int> answers{0}, late{0}, cancelled{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < kCallers; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        const LargeCall& call = *calls[static_cast<size_t>((t + i) % kCallers)];
        v1::AttendResponse response;
        const auto stays = std::chrono::microseconds(1500 * (kCallers * (i / 3) + t) + 1);
        grpc::Status status;
        if (i % 3 == 2) {
          status = AskAndCancel(call.request, &response, [&] { std::this_thread::sleep_for(stays); });
        } else {
          status = Ask(call.request, &response, [&](grpc::ClientContext* context) {
            if (i % 3 == 1) context->set_deadline(std::chrono::system_clock::now() + stays);
          });
        }
        if (status.ok()) {
          call.ExpectRight(response);
          ++answers;
        } else if (i % 3 == 1 && (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                                  absl::StrContains(status.error_details(), "OVERLOADED"))) {
          ++late;  // or refused, because it would be
        } else if (i % 3 == 2 && status.error_code() == grpc::StatusCode::CANCELLED) {
          ++cancelled;
        } else {
          ADD_FAILURE() << i << ": " << status.error_code() << ": " << status.error_message();
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(answers, kCallers * kCalls / 3);
  EXPECT_GT(late, 0);
  EXPECT_GT(cancelled, 0);
  EXPECT_GE(std::max(Memory("staging_peak", 0), Memory("staging_peak", 1)), 8 * kMiB);
}

}  // namespace
}  // namespace attend::server
