// Batching, cancellation and drain in the real server, loaded by real client processes.
#include <signal.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/device_fixture.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kDeviceFree[] = "attend_device_memory_bytes{kind=\"free\"}";

struct Answer {
  std::string digest;
  int64_t batch_requests = 0;
};

std::map<int64_t, Answer> Digests(ChildProcess& client) {
  EXPECT_EQ(client.Wait(), 0);
  std::map<int64_t, Answer> answers;
  std::istringstream lines(client.Output());
  int64_t index;
  for (Answer a; lines >> index >> a.digest >> a.batch_requests;) answers[index] = a;
  EXPECT_TRUE(lines.eof()) << client.Output();
  return answers;
}

using Batching = DeviceTest;

TEST_F(Batching, BitsAreTheSameAloneAndUnderLoad) {
  constexpr int kRequests = 150, kClients = 3, kSeed = 1234;
  const auto started = StartServer();
  ServerProcess& server = *started;
  ASSERT_TRUE(server.running()) << server.Log();
  const std::map<int64_t, Answer> alone = Digests(*StartClient(server, "digest", kSeed, kRequests, 1));
  ASSERT_EQ(alone.size(), size_t{kRequests});
  std::vector<std::unique_ptr<ChildProcess>> clients;
  for (int c = 0; c < kClients; ++c) clients.push_back(StartClient(server, "digest", kSeed, kRequests, 16));
  int64_t shared = 0;
  for (auto& client : clients) {
    const std::map<int64_t, Answer> crowd = Digests(*client);
    ASSERT_EQ(crowd.size(), size_t{kRequests});
    for (const auto& [i, answer] : crowd) {
      EXPECT_EQ(answer.digest, alone.at(i).digest) << "request " << i;
      shared += answer.batch_requests > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(shared, 0);
  ExpectIdle(server);
}

TEST_F(Batching, AStormOfCancellationsAndDeadlinesLeavesNothing) {
  const auto started = StartServer();
  ServerProcess& server = *started;
  ASSERT_TRUE(server.running()) << server.Log();
  std::vector<std::unique_ptr<ChildProcess>> clients;
  for (int c = 0; c < 3; ++c) clients.push_back(StartClient(server, "storm", 100 + c, 400, 8));
  const std::map<std::string, int64_t> counts = Counts(clients);
  // RESOURCE_EXHAUSTED: what is predicted to be answered too late is not taken.
  for (const auto& [code, count] : counts) {
    EXPECT_THAT(code, testing::AnyOf("OK", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")) << count;
  }
  EXPECT_GT(counts.contains("OK") ? counts.at("OK") : 0, 0);
  ExpectIdle(server);
  ExpectAnswers(server);
}

TEST_F(Batching, ADrainUnderLoadLosesNothingThatWasAccepted) {
  const auto started = StartServer({"--log-calls-per-second=1000000"});
  ServerProcess& server = *started;
  ASSERT_TRUE(server.running()) << server.Log();
  std::vector<std::unique_ptr<ChildProcess>> clients;
  for (int c = 0; c < 3; ++c) clients.push_back(StartClient(server, "count", 10 + c, 0, 8));
  ASSERT_TRUE([&] {
    for (const absl::Time until = absl::Now() + absl::Seconds(30); absl::Now() < until;) {
      if (MetricOf(server, "grpc_server_handled_total") > 200) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(absl::Seconds(60)), 0) << server.Log();
  std::map<std::string, int64_t> counts = Counts(clients);
  // Every answer that the server gave has come, and what it did not take came back so. (gRPC itself ends
  // a call with CANCELLED that reaches a server in the moment of its shutdown, before we see it.)
  for (const auto& [code, count] : counts) {
    EXPECT_TRUE(code == "OK" || code == "UNAVAILABLE" || code == "CANCELLED") << code << " " << count;
  }
  int64_t answered = 0;
  for (const absl::string_view line : absl::StrSplit(server.Log(), '\n')) {
    if (absl::StrContains(line, "code=OK")) ++answered;
  }
  EXPECT_EQ(counts["OK"], answered);
}

// S13, S14: in bounded time, also where a batch does not end. On the CPU: nothing holds a GPU for so long.
TEST_F(Batching, ADrainEndsInTimeThoughABatchRunsOn) {
  ServerProcess server({"--device=cpu", "--cpu-threads=1", "--drain-timeout=500ms"});
  ASSERT_TRUE(server.running()) << server.Log();
  const auto client = StartClient(server, "long", 1, 1, 1);
  // Admitted and out of the queue: it runs.
  for (const absl::Time until = absl::Now() + absl::Seconds(30);
       !(MetricOf(server, "attend_queue_bytes") > 0) && absl::Now() < until;) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (const absl::Time until = absl::Now() + absl::Seconds(10);
       MetricOf(server, "attend_queue_depth") != 0 && absl::Now() < until;) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(MetricOf(server, "attend_queue_depth"), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(absl::Seconds(60)), 1) << server.Log();
  EXPECT_THAT(server.Log(), testing::HasSubstr("all_answered=false"));
}

TEST_F(Batching, KilledClientsLeakNothing) {
  const auto started = StartServer({"--receive-keep-bytes=128KiB"});  // what is freed goes back
  ServerProcess& server = *started;
  ASSERT_TRUE(server.running()) << server.Log();
  constexpr int kClients = 2, kRounds = 3;
  constexpr int64_t kMessage = 6 * kMiB;
  const auto hold_and_kill = [&](int round) {
    std::vector<std::unique_ptr<ChildProcess>> clients;
    for (int c = 0; c < kClients; ++c) clients.push_back(StartClient(server, "hold", round * 10 + c, 0, 6));
    for (const absl::Time until = absl::Now() + absl::Seconds(20);
         !(MetricOf(server, "attend_inflight_requests") >= 4) && absl::Now() < until;) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    absl::SleepFor(absl::Milliseconds(37 * (round % 6)));  // another stage of their requests each time
    for (auto& client : clients) client->Signal(SIGKILL);
    for (auto& client : clients) client->Wait();
    ExpectIdle(server);
  };
  // What the allocator keeps, and the pool's touched pages, come to an end. A leak of one message a round and
  // client would add the double of this every time.
  constexpr int64_t kGrowthMax = kRounds * kClients * kMessage / 2;
  int64_t last = 0, growth = 0;
  for (int look = 0; look < 5 && (look < 2 || growth > kGrowthMax); ++look) {
    for (int round = 0; round < kRounds; ++round) hold_and_kill(look * kRounds + round);
    const auto pool_peak =
        static_cast<int64_t>(MetricOf(server, "attend_pinned_memory_bytes{kind=\"peak\"}"));
    const int64_t now = server.ResidentBytes() - pool_peak;
    growth = now - std::exchange(last, now);
  }
  if (!kSanitized) {
    EXPECT_LE(growth, kGrowthMax);
  }
  ExpectAnswers(server);
}

// S5. ATTEND_SMALL_REQUESTS says how many; a million take some minutes.
TEST_F(Batching, SmallRequestsLeaveMemoryFlat) {
  const char* const asked = std::getenv("ATTEND_SMALL_REQUESTS");
  const int64_t requests = asked != nullptr ? std::atoll(asked) : kSanitized ? 4000 : 60000;
  const auto started = StartServer();
  ServerProcess& server = *started;
  ASSERT_TRUE(server.running()) << server.Log();
  const auto run = [&](int64_t count) {
    std::vector<std::unique_ptr<ChildProcess>> clients;
    for (int c = 0; c < 4; ++c) clients.push_back(StartClient(server, "small", c, count / 4, 32));
    for (auto& client : clients) ASSERT_TRUE(client->Wait(absl::Hours(1)).has_value());
    EXPECT_EQ(Counts(clients)["OK"], count / 4 * 4);
  };
  run(requests / 4);  // until pools, threads and allocator have settled
  const int64_t settled = server.ResidentBytes();
  const double device_free = MetricOf(server, kDeviceFree);
  run(requests);
  const int64_t after = server.ResidentBytes();
  std::printf("resident: %.1f MiB settled, %.1f MiB after %ld more requests\n",
              static_cast<double>(settled) / kMiB, static_cast<double>(after) / kMiB,
              static_cast<long>(requests));
  // A thread's arena may still come, whatever the count.
  if (!kSanitized) {
    EXPECT_LT(after, settled + 16 * kMiB);
  }
  // Pinned and device memory are pools of one size; what is outside of them does not grow either.
  ExpectIdle(server);
  if (on_gpu()) {
    EXPECT_GT(device_free, 0);
    EXPECT_GE(MetricOf(server, kDeviceFree), device_free - 16.0 * kMiB);
  }
}

}  // namespace
}  // namespace attend::integration
