// What stays in a server when its callers are gone: nothing that grows.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

pid_t StartFlood(const std::string& target) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  // Requests of 12 MiB: most of a client's life is spent in the middle of one.
  execl(ATTEND_FLOOD_CLIENT, ATTEND_FLOOD_CLIENT, target.c_str(), "8", "4096", nullptr);
  _exit(127);
}

// Starts clients and kills them, as kill -9 does, some time after their first calls have begun.
void FloodAndKill(const ServerProcess& server, int clients, absl::Duration life) {
  std::vector<pid_t> pids;
  for (int i = 0; i < clients; ++i) pids.push_back(StartFlood(server.target()));
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  double calls = 0;
  while (calls < 1 && absl::Now() < limit) calls = Metric(server.metrics_port(), "attend_inflight_requests");
  EXPECT_GE(calls, 1);
  absl::SleepFor(life);
  for (const pid_t pid : pids) {
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it was still sending";
  }
}

TEST(Leaks, ClientsKilledInMidRequestLeaveNothing) {
  ServerProcess server({"--host-bytes-max=256MiB", "--receive-bytes-max=128MiB"});
  ASSERT_TRUE(server.running()) << server.Log();
  std::mt19937 rng(5);
  const auto life = [&rng] { return absl::Milliseconds(static_cast<int>(rng() % 200)); };
  for (int round = 0; round < 4; ++round) FloodAndKill(server, 3, life());
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
  const int64_t before = server.ResidentBytes();
  for (int round = 0; round < 12; ++round) FloodAndKill(server, 3, life());
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
  // 36 killed clients held 12 MiB or more each; what the heap keeps of freed slices varies.
  EXPECT_LT(server.ResidentBytes() - before, 96 * kMebibyte);
  EXPECT_TRUE(Call(server.Connect(), SmallMessage()).status.ok());
  EXPECT_EQ(server.Stop(), 0) << server.Log();
}

// Threads that call, each over a connection of its own, until count calls were made in all.
void CallMany(const ServerProcess& server, int64_t count) {
  constexpr int kCallers = 8;
  const std::string request = SimpleRequest(2, 4).SerializeAsString();
  std::atomic<int64_t> left(count), failed(0);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      const auto channel = server.Connect();
      while (left.fetch_sub(1) > 0) failed += Call(channel, request).status.ok() ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0);
}

// S5. ATTEND_SOAK_REQUESTS=1000000 for the long run.
TEST(Leaks, SmallRequestsLeaveResidentMemoryFlat) {
  const char* asked = std::getenv("ATTEND_SOAK_REQUESTS");
  const int64_t requests = asked == nullptr ? 30000 : std::atoll(asked);
  ServerProcess server;
  ASSERT_TRUE(server.running()) << server.Log();
  CallMany(server, std::max<int64_t>(requests / 5, 10000));  // caches and pools fill
  const int64_t before = server.ResidentBytes();
  CallMany(server, requests);
  const int64_t after = server.ResidentBytes();
  std::printf("resident after %lld requests: %.1f MiB, before them %.1f MiB\n",
              static_cast<long long>(requests), static_cast<double>(after) / kMebibyte,
              static_cast<double>(before) / kMebibyte);
  // A kilobyte kept of each call would be 30 MiB. What threads that gRPC adds under contention touch of their
  // heaps is some hundred kilobytes each, whatever the number of requests.
  EXPECT_LT(after - before, 16 * kMebibyte);
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
}

struct Faults {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t mean = 0;
};

// Page faults of a server for a request of 12 MiB, among some. Each heap of gRPC's threads faults its first
// message in, whichever request that is, so that the least tells of kept memory and the mean of memory given
// back.
std::optional<Faults> FaultsOfARequest(const std::string& flag) {
  constexpr int kRequests = 24;
  ServerProcess server({flag});
  if (!server.running()) return std::nullopt;
  const auto channel = server.Connect();
  const std::string request = SimpleRequest(8, 4096).SerializeAsString();
  Faults faults;
  for (int i = 0; i < kRequests; ++i) {
    const int64_t before = server.PageFaults();
    if (before < 0) return std::nullopt;
    EXPECT_TRUE(Call(channel, request).status.ok());
    const int64_t faults_of_this = server.PageFaults() - before;
    faults.least = std::min(faults.least, faults_of_this);
    faults.mean += faults_of_this;
  }
  faults.mean /= kRequests;
  return faults;
}

TEST(Leaks, MemoryOfMessagesIsKeptForTheNext) {
  const std::optional<Faults> given_back = FaultsOfARequest("--receive-keep-bytes=128KiB");
  const std::optional<Faults> kept = FaultsOfARequest("--receive-keep-bytes=64MiB");
  if (!given_back || !kept) GTEST_SKIP() << "ATTEND-SKIPPED: the system counts no page faults";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ATTEND-SKIPPED: a sanitizer's heap keeps what is freed in its own way";
#endif
  EXPECT_LT(kept->least, given_back->mean / 2) << "of 3072 pages";
}

}  // namespace
}  // namespace attend::integration
