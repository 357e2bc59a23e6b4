// The binary itself: exit codes, the lines that operators read, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "attend_version.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int code;
  std::string output;
};

// Runs attend-server to its end.
Ended RunServer(std::vector<std::string> flags) {
  flags.insert(flags.begin(), std::getenv("ATTEND_SERVER"));
  ChildProcess process(flags);
  const auto code = process.Wait(absl::Seconds(20));
  return {code.value_or(-1), process.Output()};
}

TEST(Process, SaysItsVersion) {
  const Ended ended = RunServer({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.output, "attend-server " ATTEND_VERSION "\n");
}

TEST(Process, HelpAndConfigEndWell) {
  EXPECT_EQ(RunServer({"--help"}).code, 0);
  EXPECT_EQ(RunServer({"--check-config"}).code, 0);
  const Ended printed = RunServer({"--print-config", "--calls-max=77"});
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.output, HasSubstr("\ncalls_max = 77\n"));
}

TEST(Process, WrongOptionsEndWithTwo) {
  EXPECT_EQ(RunServer({"--check-config", "--calls-max=0"}).code, 2);
  EXPECT_EQ(RunServer({"--devices=x"}).code, 2);
  const Ended little = RunServer({"--check-config", "--host-bytes-max=4KiB"});
  EXPECT_EQ(little.code, 2);
  EXPECT_THAT(little.output, HasSubstr("attend-server: --host-bytes-max: "));
}

TEST(Process, MemoryThatCannotBeHadNamesItsOption) {
  const Ended ended = RunServer(
      {"--device=cpu", "--address=127.0.0.1:0", "--metrics-address=off", "--host-bytes-max=1048576GiB"});
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("attend-server: --host-bytes-max: "));
}

TEST(Process, AMissingGpuIsOneLine) {
  if (std::system("nvidia-smi >/dev/null 2>&1") == 0) GTEST_SKIP() << "ATTEND-SKIPPED: there is a GPU";
  const Ended ended =
      RunServer({"--device=cuda", "--address=127.0.0.1:0", "--metrics-address=off", "--log-level=error"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, ::testing::StartsWith("attend-server: --device=cuda: "));
  EXPECT_EQ(ended.output.find('\n'), ended.output.size() - 1);
}

TEST(Process, AnOldDriverIsOneLineThatSaysWhatIsNeeded) {
  const char* const driver = std::getenv("ATTEND_OLD_DRIVER");
  if (driver == nullptr) GTEST_SKIP() << "built without CUDA";
  const char* const paths = std::getenv("LD_LIBRARY_PATH");
  const std::optional<std::string> before =
      paths == nullptr ? std::nullopt : std::optional<std::string>(paths);
  setenv("LD_LIBRARY_PATH", absl::StrCat(driver, ":", before.value_or("")).c_str(), 1);
  const Ended ended =
      RunServer({"--device=cuda", "--address=127.0.0.1:0", "--metrics-address=off", "--log-level=error"});
  ServerProcess fallen({"--device=auto"});
  if (before) setenv("LD_LIBRARY_PATH", before->c_str(), 1);
  if (!before) unsetenv("LD_LIBRARY_PATH");
  const std::string line = "the NVIDIA driver supports CUDA 11.4; this build needs CUDA ";
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, ::testing::StartsWith(absl::StrCat("attend-server: --device=cuda: ", line)));
  EXPECT_EQ(ended.output.find('\n'), ended.output.size() - 1);
  EXPECT_TRUE(fallen.running());
  EXPECT_THAT(fallen.Log(), HasSubstr(absl::StrCat("choice=\"cpu: ", line)));
}

TEST(Process, ATakenPortIsOneLine) {
  ServerProcess first;
  ASSERT_TRUE(first.running()) << first.Log();
  const Ended second = RunServer(
      {"--device=null", "--address=" + first.target(), "--metrics-address=off", "--log-level=error"});
  EXPECT_EQ(second.code, 1);
  EXPECT_EQ(second.output,
            "attend-server: cannot listen on " + first.target() + ": Address already in use\n");
}

TEST(Process, TermAndIntEndWell) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServerProcess server;
    ASSERT_TRUE(server.running()) << server.Log();
    server.Signal(signal);
    EXPECT_EQ(server.WaitForExit(absl::Seconds(20)), 0);
    EXPECT_THAT(server.Log(), HasSubstr("all_answered=true"));
  }
}

// gRPC's listener does not survive it, so the process must not go on as if it did.
TEST(Process, WithoutFileDescriptorsItEndsAndSaysSo) {
  const std::string folder = ::testing::TempDir();
  const std::string ports = folder + "/attend-process-test-" + std::to_string(getpid());
  ChildProcess process({"/bin/sh", "-c", "ulimit -n 100 && exec \"$0\" \"$@\"", std::getenv("ATTEND_SERVER"),
                        "--device=null", "--address=127.0.0.1:0", "--metrics-address=off",
                        "--port-file=" + ports});
  int port = 0;
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!(std::ifstream(ports) >> port) && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
  unlink(ports.c_str());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> connections;
  for (int i = 0; i < 200; ++i) {
    connections.push_back(socket(AF_INET, SOCK_STREAM, 0));
    if (connect(connections.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) break;
  }
  while (process.Output().find("a fault; draining") == std::string::npos && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (const int connection : connections) close(connection);
  EXPECT_EQ(process.Wait(absl::Seconds(60)), 1);
  EXPECT_THAT(process.Output(), HasSubstr("Too many open files"));
}

TEST(Process, ASecondSignalCutsTheDrainShort) {
  ServerProcess server({"--drain-delay=60s"});
  ASSERT_TRUE(server.running()) << server.Log();
  server.Signal(SIGTERM);
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (server.Log().find("draining") == std::string::npos && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  absl::SleepFor(absl::Milliseconds(100));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(absl::Seconds(20)), 128 + SIGTERM);
}

TEST(Process, AutoSaysWhatItTookAndLogsAreJsonWhereAsked) {
  ServerProcess server({"--device=auto", "--log-format=json"});
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_THAT(server.Log(), HasSubstr("\"message\":\"device\",\"choice\":\""));
  if (std::system("nvidia-smi >/dev/null 2>&1") != 0) {
    EXPECT_THAT(server.Log(), HasSubstr("\"choice\":\"cpu: "));
  }
}

}  // namespace
}  // namespace attend::integration
