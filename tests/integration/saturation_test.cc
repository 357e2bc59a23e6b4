// A device with more to do than it can: launches are shared, and where even that is not enough, answers
// still come in time. The null device takes a time for each launch, so that counts tell what a stopwatch
// would, on any machine.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "server/error.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

struct Launches {
  double count, requests, device_seconds;
};

Launches LaunchesOf(const ServerProcess& server) {
  const int port = server.metrics_port();
  return {Metric(port, "attend_batch_requests_count"), Metric(port, "attend_batch_requests_sum"),
          Metric(port, "attend_kernel_seconds_sum")};
}

// Callers that each wait for their answer; all are answered.
void Saturate(const ServerProcess& server, int callers, int calls_each) {
  const std::string message = SmallMessage();
  std::vector<std::thread> threads;
  for (int c = 0; c < callers; ++c) {
    threads.emplace_back([&] {
      const auto channel = server.Connect();
      for (int i = 0; i < calls_each; ++i) EXPECT_TRUE(Call(channel, message).status.ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Saturation, LaunchesAreSharedAndSoTheDeviceAnswersMore) {
  constexpr int kCallers = 32;
  ServerProcess shared({"--null-launch-time=20ms"});
  ASSERT_TRUE(shared.running()) << shared.Log();
  Saturate(shared, kCallers, 20);
  const Launches together = LaunchesOf(shared);
  EXPECT_EQ(together.requests, kCallers * 20);
  EXPECT_GT(together.requests / together.count, 4);

  ServerProcess single({"--null-launch-time=20ms", "--batch-requests-max=1"});
  ASSERT_TRUE(single.running()) << single.Log();
  Saturate(single, kCallers, 2);
  const Launches alone = LaunchesOf(single);
  EXPECT_EQ(alone.requests, kCallers * 2);
  EXPECT_EQ(alone.count, alone.requests);

  // Requests for each second of the device.
  EXPECT_GT(together.requests / together.device_seconds, 1.5 * alone.requests / alone.device_seconds);
}

// 200 requests a second is what this device can do, in batches of four; twice as many come, each worth
// nothing after half a second.
TEST(Saturation, AtTwiceTheCapacityTheDeviceWorksForAnswersInTime) {
  constexpr int kCallers = 256, kRounds = 6, kBatch = 4;
  constexpr absl::Duration kInterval = absl::Milliseconds(640);  // 256 callers: 400 calls a second
  ServerProcess server({"--null-launch-time=20ms", absl::StrCat("--batch-requests-max=", kBatch)});
  ASSERT_TRUE(server.running()) << server.Log();
  const std::string message = SmallMessage();
  std::atomic<int> answered = 0, overloaded = 0, late = 0, others = 0;
  std::vector<std::thread> threads;
  const auto channel = server.Connect();
  const absl::Time start = absl::Now() + absl::Milliseconds(200);
  for (int c = 0; c < kCallers; ++c) {
    threads.emplace_back([&, c] {
      for (int i = 0; i < kRounds; ++i) {
        absl::SleepFor(start + kInterval * i + kInterval * c / kCallers - absl::Now());
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
        const grpc::Status status = Call(channel, message, &context).status;
        if (status.ok()) {
          ++answered;
        } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
          ++overloaded;
        } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
          ++late;
        } else {
          ++others;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Launches launches = LaunchesOf(server);
  EXPECT_EQ(others, 0);
  EXPECT_GT(overloaded, kCallers * kRounds / 10);
  EXPECT_EQ(Metric(server.metrics_port(), "attend_rejected_total{reason=\"overloaded\"}"), overloaded);
  // Launches are full, and what they hold comes in time: goodput is what the device can do.
  EXPECT_GE(launches.requests, 0.9 * kBatch * launches.count);
  EXPECT_GE(answered, 0.9 * launches.requests) << late << " late";
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
}

}  // namespace
}  // namespace attend::integration
