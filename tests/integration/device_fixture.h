// Tests of the real server on one device: the CPU's, or what ATTEND_TEST_DEVICE names (cuda).
#ifndef ATTEND_TESTS_INTEGRATION_DEVICE_FIXTURE_H_
#define ATTEND_TESTS_INTEGRATION_DEVICE_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_process.h"

namespace attend::integration {

// Sanitizers keep freed memory and slow all down: then counts are checked, not resident memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Skips, and says why, where there is no such device.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;

  static std::string device();
  static bool on_gpu() { return device() == "cuda"; }
  // A server on the device, with pools that are small enough to start fast.
  static std::unique_ptr<ServerProcess> StartServer(std::vector<std::string> flags = {});

  // load_client.cc says what the modes do.
  static std::unique_ptr<ChildProcess> StartClient(const ServerProcess& server, const std::string& mode,
                                                   int seed, int64_t requests, int concurrency);
  // "CODE count" lines of clients that have ended, summed.
  static std::map<std::string, int64_t> Counts(const std::vector<std::unique_ptr<ChildProcess>>& clients);

  static double MetricOf(const ServerProcess& server, const char* series);
  // Nothing is held any more: no call, no queued request, no byte of a pool.
  static void ExpectIdle(const ServerProcess& server);
  // And what is asked next is answered.
  static void ExpectAnswers(const ServerProcess& server);
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_DEVICE_FIXTURE_H_
