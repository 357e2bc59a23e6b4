// Answers of the real server on a device, and what it does when its memory is used up.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "attend/client.h"
#include "client/cli/accuracy.h"
#include "client/cli/inputs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/device_fixture.h"

namespace attend::integration {
namespace {

using Device = DeviceTest;
using cli::Inputs;
using cli::Sizes;

std::unique_ptr<client::Client> Connect(const ServerProcess& server, int attempts_max = 4) {
  client::ClientOptions options;
  options.health_check = false;
  options.timeout = absl::Seconds(kSanitized ? 300 : 20);
  options.retry.attempts_max = attempts_max;
  auto client = client::Client::Create(server.target(), options);
  if (!client.ok()) ADD_FAILURE() << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

// Every kernel's answer to a few kinds of problems in every data type, against float64, while others load the
// server.
TEST_F(Device, AnswersAreRightUnderLoad) {
  const auto server = StartServer();
  ASSERT_TRUE(server->running()) << server->Log();
  const auto client = Connect(*server);
  const auto crowd = StartClient(*server, "count", 7, 0, 8);
  struct Case {
    const char* name;
    Sizes sizes;
    void (*change)(client::Request&);
  };
  const Case cases[] = {
      {"plain", {2, 4, 130, 64}, [](client::Request&) {}},
      {"causal, grouped heads",
       {1, 8, 200, 128, 2},
       [](client::Request& r) { r.causal = client::Causal::kBottomRight; }},
      {"window, softcap",
       {1, 4, 190, 96},
       [](client::Request& r) {
         r.window_left = 40;
         r.window_right = 3;
         r.softcap = 5.0f;
       }},
      {"lengths",
       {3, 2, 77, 40},
       [](client::Request& r) {
         r.q_lengths = {77, 0, 5};
         r.kv_lengths = {1, 77, 60};
         r.causal = client::Causal::kTopLeft;
       }},
      {"one query", {1, 16, 1, 256, 1}, [](client::Request&) {}},
  };
  for (const Case& c : cases) {
    for (const client::DataType dtype :
         {client::DataType::kFp32, client::DataType::kFp16, client::DataType::kBf16}) {
      Inputs inputs = cli::RandomInputs(c.sizes, dtype, 11);
      c.change(inputs.request);
      const auto checked = cli::CheckKernels(*client, inputs.request, c.name, nullptr, /*unit_normal=*/true);
      ASSERT_TRUE(checked.ok()) << c.name << ": " << checked.status();
      EXPECT_TRUE(cli::AllOk(*checked)) << cli::ToText(*checked);
      EXPECT_THAT(checked->at(0).device, testing::StartsWith(device()));
    }
  }
  EXPECT_EQ(server->Stop(), 0) << server->Log();
  EXPECT_EQ(crowd->Wait(), 0);
}

// Sends the request from as many threads at once; what became of each.
std::vector<absl::StatusOr<client::Response>> CallAtOnce(client::Client& client,
                                                         const client::Request& request, int callers) {
  std::vector<absl::StatusOr<client::Response>> responses(static_cast<size_t>(callers));
  std::vector<std::thread> threads;
  for (auto& response : responses) {
    threads.emplace_back([&client, &request, &response] { response = client.Attend(request); });
  }
  for (std::thread& thread : threads) thread.join();
  return responses;
}

// Requests of 8 MiB on the device each, where 16 MiB are there, wait for it and are all answered.
TEST_F(Device, RequestsThatDoNotFitTogetherWaitForDeviceMemory) {
  const auto server = StartServer({"--device-bytes-max=16MiB"});
  ASSERT_TRUE(server->running()) << server->Log();
  const auto client = Connect(*server);
  const Inputs inputs = cli::RandomInputs({1, 32, 512, 64}, client::DataType::kFp16, 5);
  const auto alone = client->Attend(inputs.request);
  ASSERT_TRUE(alone.ok()) << alone.status() << "\n" << server->Log();
  for (const auto& response : CallAtOnce(*client, inputs.request, 12)) {
    ASSERT_TRUE(response.ok()) << response.status() << "\n" << server->Log();
    EXPECT_EQ(response->out.bytes(), alone->out.bytes());
  }
  ExpectIdle(*server);
}

TEST_F(Device, ARequestLargerThanDeviceMemoryIsRefusedAndTheNextIsAnswered) {
  if (!on_gpu()) GTEST_SKIP() << "only a GPU has memory of its own";
  const auto server = StartServer({"--device-bytes-max=16MiB"});
  ASSERT_TRUE(server->running()) << server->Log();
  const auto client = Connect(*server);
  Inputs inputs = cli::RandomInputs({1, 8, 2048, 64}, client::DataType::kFp16, 5);
  inputs.request.kernel = client::Kernel::kNaive;  // 128 MiB of scores
  const auto refused = client->Attend(inputs.request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  EXPECT_EQ(client::GetReason(refused.status()), "REQUEST_TOO_LARGE");
  inputs.request.kernel = client::Kernel::kFlash;  // 8 MiB
  const auto answered = client->Attend(inputs.request);
  EXPECT_TRUE(answered.ok()) << answered.status();
  ExpectIdle(*server);
}

// Large requests, whose tensors go to a GPU while they are parsed: the same bits as without, whatever else is
// under way, and nothing left behind by callers that give up meanwhile.
TEST_F(Device, LargeRequestsThatAreCopiedAheadAnswerAlike) {
  const auto plain = StartServer({"--device-staging-bytes-max=0"});
  ASSERT_TRUE(plain->running()) << plain->Log();
  const Inputs inputs = cli::RandomInputs({2, 32, 128, 256}, client::DataType::kFp16, 5);  // 12 MiB
  const auto expected = Connect(*plain)->Attend(inputs.request);
  ASSERT_TRUE(expected.ok()) << expected.status() << "\n" << plain->Log();

  const auto server = StartServer();
  ASSERT_TRUE(server->running()) << server->Log();
  const auto client = Connect(*server);
  client::ClientOptions options;
  options.health_check = false;
  options.retry.attempts_max = 1;
  for (int round = 0; round < 6; ++round) {
    options.timeout = absl::Milliseconds(5 * round + 3);
    auto hasty = client::Client::Create(server->target(), options);
    ASSERT_TRUE(hasty.ok()) << hasty.status();
    std::thread others([&] { CallAtOnce(**hasty, inputs.request, 4); });
    const auto responses = CallAtOnce(*client, inputs.request, 4);
    others.join();
    for (const auto& response : responses) {
      ASSERT_TRUE(response.ok()) << response.status() << "\n" << server->Log();
      EXPECT_EQ(response->out.bytes(), expected->out.bytes());
    }
  }
  ExpectIdle(*server);
  if (on_gpu()) {
    EXPECT_GE(MetricOf(*server, "attend_device_memory_bytes{kind=\"staging_peak\"}"), 12 << 20);
  }
}

// A pool for three requests, and many more at once: some are refused, and all is well afterwards.
TEST_F(Device, AFullPoolRefusesWithADelayAndRecovers) {
  const auto server = StartServer({"--host-bytes-max=32MiB"});
  ASSERT_TRUE(server->running()) << server->Log();
  const auto client = Connect(*server, /*attempts_max=*/1);
  const Inputs inputs = cli::RandomInputs({1, 32, 512, 64}, client::DataType::kFp16, 5);
  const auto alone = client->Attend(inputs.request);
  ASSERT_TRUE(alone.ok()) << alone.status() << "\n" << server->Log();
  int refused = 0, answered = 0;
  for (int round = 0; round < 20 && (refused == 0 || answered == 0); ++round) {
    for (const auto& response : CallAtOnce(*client, inputs.request, 24)) {
      if (response.ok()) {
        ++answered;
        EXPECT_EQ(response->out.bytes(), alone->out.bytes());
        continue;
      }
      ++refused;
      EXPECT_EQ(response.status().code(), absl::StatusCode::kResourceExhausted) << response.status();
      EXPECT_TRUE(client::GetRetryDelay(response.status()).has_value()) << response.status();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(answered, 0);
  ExpectIdle(*server);
  const auto after = client->Attend(inputs.request);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->out.bytes(), alone->out.bytes());
}

}  // namespace
}  // namespace attend::integration
