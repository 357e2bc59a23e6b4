#include "tests/integration/device_fixture.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/server_metrics.h"

namespace attend::integration {
namespace {

// Why the server cannot run on a GPU here; empty where it can, or where it fails for another reason.
std::string NoGpu() {
  const ServerProcess server({"--device=cuda", "--host-bytes-max=64MiB", "--device-bytes-max=64MiB"});
  if (server.running()) return "";
  for (const char* why : {"this build has no CUDA", "no NVIDIA driver was found", "no GPU is visible"}) {
    if (absl::StrContains(server.Log(), why)) return why;
  }
  return "";
}

}  // namespace

std::string DeviceTest::device() {
  const char* const named = std::getenv("ATTEND_TEST_DEVICE");
  return named != nullptr ? named : "cpu";
}

void DeviceTest::SetUp() {
  if (!on_gpu()) return;
  static const std::string why = NoGpu();
  if (why.empty()) return;
  std::printf("ATTEND-SKIPPED: %s\n", why.c_str());
  GTEST_SKIP() << why;
}

std::unique_ptr<ServerProcess> DeviceTest::StartServer(std::vector<std::string> flags) {
  std::vector<std::string> all = {absl::StrCat("--device=", device()), "--host-bytes-max=2GiB",
                                  "--device-bytes-max=4GiB"};
  // Sanitized kernels on a busy machine take longer than what a hung device is told by.
  if (kSanitized) all.emplace_back("--hang-floor=10m");
  for (std::string& flag : flags) all.push_back(std::move(flag));
  return std::make_unique<ServerProcess>(std::move(all));
}

std::unique_ptr<ChildProcess> DeviceTest::StartClient(const ServerProcess& server, const std::string& mode,
                                                      int seed, int64_t requests, int concurrency) {
  return std::make_unique<ChildProcess>(
      std::vector<std::string>{std::getenv("ATTEND_LOAD_CLIENT"), server.target(), mode, absl::StrCat(seed),
                               absl::StrCat(requests), absl::StrCat(concurrency)});
}

std::map<std::string, int64_t> DeviceTest::Counts(const std::vector<std::unique_ptr<ChildProcess>>& clients) {
  std::map<std::string, int64_t> counts;
  for (const auto& client : clients) {
    EXPECT_EQ(client->Wait(), 0) << client->Output();
    std::istringstream lines(client->Output());
    std::string code;
    for (int64_t count; lines >> code >> count;) counts[code] += count;
    EXPECT_TRUE(lines.eof()) << client->Output();
  }
  return counts;
}

double DeviceTest::MetricOf(const ServerProcess& server, const char* series) {
  return Metric(server.metrics_port(), series);
}

void DeviceTest::ExpectIdle(const ServerProcess& server) {
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "") << server.Log();
}

void DeviceTest::ExpectAnswers(const ServerProcess& server) {
  std::vector<std::unique_ptr<ChildProcess>> clients;
  clients.push_back(StartClient(server, "small", 1, 10, 2));
  EXPECT_EQ(Counts(clients)["OK"], 10);
}

}  // namespace attend::integration
