// nginx, as deploy/nginx configures it, in front of two server processes.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/deploy/callers.h"
#include "tests/integration/eventually.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_process.h"

namespace attend::deploy {
namespace {

using integration::ChildProcess;
using integration::Eventually;
using integration::ServerProcess;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kNginx[] = "/usr/sbin/nginx";

class Proxy : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kNginx, X_OK) != 0) GTEST_SKIP() << "ATTEND-SKIPPED: nginx is not installed";
    std::string folder = (std::filesystem::temp_directory_path() / "attend-proxy-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    for (int i = 0; i < 2; ++i) {
      servers_.push_back(std::make_unique<ServerProcess>(std::vector<std::string>{"--device=cpu"}));
      ASSERT_TRUE(servers_[i]->running()) << servers_[i]->Log();
    }
    WriteConfig({0, 1});
    nginx_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{kNginx, "-e", folder_ + "/error.log", "-c", folder_ + "/nginx.conf"});
    ASSERT_TRUE(Eventually([&] { return access(socket().c_str(), F_OK) == 0; })) << nginx_->Output();
  }
  void TearDown() override {
    if (nginx_ != nullptr) {
      nginx_->Signal(SIGTERM);
      EXPECT_EQ(nginx_->Wait(), 0) << nginx_->Output();
    }
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string socket() const { return folder_ + "/socket"; }

  // deploy/nginx/attend.conf, with these of the servers and a socket in place of the port.
  void WriteConfig(const std::vector<int>& which) {
    std::ifstream file("deploy/nginx/attend.conf");
    std::stringstream text;
    text << file.rdbuf();
    std::ofstream out(folder_ + "/nginx.conf");
    out << "daemon off;\npid " << folder_ << "/pid;\nevents {}\nhttp {\naccess_log off;\n";
    if (geteuid() == 0) out << "client_body_temp_path " << folder_ << "/bodies;\n";
    size_t listed = 0, listens = 0;
    for (const absl::string_view line : absl::StrSplit(text.str(), '\n')) {
      if (absl::StrContains(line, "listen 50050 http2;")) {
        out << "listen unix:" << socket() << " http2;\n";
        ++listens;
      } else if (absl::StrContains(line, ".example:50051")) {
        if (listed < which.size()) out << "server " << servers_[which[listed]]->target() << ";\n";
        ++listed;
      } else {
        out << line << '\n';
      }
    }
    out << "}\n";
    ASSERT_EQ(listens, 1u);
    ASSERT_EQ(listed, 2u);
  }

  std::unique_ptr<Client> NewClient(ClientOptions options = {}) {
    return *Client::Create("unix:" + socket(), options);
  }

  std::string folder_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::unique_ptr<ChildProcess> nginx_;
};

TEST_F(Proxy, PassesLargeMessagesBothWays) {
  const std::unique_ptr<Client> client = NewClient();
  // 64 MiB of k and v there; 32 MiB of q there and of out back.
  EXPECT_EQ(CallOnce(*client, 1, 65536, 3), absl::OkStatus());
  EXPECT_EQ(CallOnce(*client, 65536, 1, 4), absl::OkStatus());
}

TEST_F(Proxy, PassesErrorsWithTheirDetails) {
  std::vector<float> data(2 * 12);
  Request request;
  request.q = {DataType::kFp32, {1, 1, 2, 12}, data.data()};
  request.k = request.q;
  request.v = {DataType::kFp32, {1, 1, 1, 12}, data.data()};
  const absl::Status direct = (*Client::Create(servers_[0]->target()))->Attend(request).status();
  const absl::Status proxied = NewClient()->Attend(request).status();
  ASSERT_THAT(GetViolations(direct), Not(IsEmpty())) << Describe(direct);
  EXPECT_EQ(proxied.code(), direct.code()) << Describe(proxied);
  ASSERT_EQ(GetViolations(proxied).size(), GetViolations(direct).size()) << Describe(proxied);
  for (size_t i = 0; i < GetViolations(direct).size(); ++i) {
    EXPECT_EQ(GetViolations(proxied)[i].field, GetViolations(direct)[i].field);
    EXPECT_EQ(GetViolations(proxied)[i].description, GetViolations(direct)[i].description);
  }
  EXPECT_EQ(GetReason(proxied), GetReason(direct));
  EXPECT_THAT(GetReason(proxied), Not(IsEmpty()));
  EXPECT_THAT(GetRequestId(proxied), Not(IsEmpty()));
}

TEST_F(Proxy, SpreadsTheCallsOfOneConnection) {
  ClientOptions options;
  options.connections = 1;
  const std::unique_ptr<Client> client = NewClient(options);
  Callers callers(client.get(), 8);
  EXPECT_TRUE(Eventually([&] { return Answered(*servers_[0]) >= 50 && Answered(*servers_[1]) >= 50; }));
  callers.Stop();
  EXPECT_THAT(callers.failures(), IsEmpty());
}

// The upgrade of the run book: out of the list, reload, then stop.
TEST_F(Proxy, AServerThatIsTakenOutFirstStopsWithoutLoss) {
  const std::unique_ptr<Client> client = NewClient();
  Callers callers(client.get(), 8);
  ASSERT_TRUE(Eventually([&] { return Answered(*servers_[0]) >= 20 && Answered(*servers_[1]) >= 20; }));
  WriteConfig({1});
  nginx_->Signal(SIGHUP);
  // Calls no longer reach it when none has come for a while.
  int64_t seen = -1;
  ASSERT_TRUE(Eventually([&] {
    const int64_t now = Ended(*servers_[0]);
    const bool still = now == seen;
    seen = now;
    absl::SleepFor(absl::Milliseconds(500));
    return still;
  }));
  EXPECT_EQ(servers_[0]->Stop(), 0) << servers_[0]->Log();
  const int64_t before = callers.answered();
  ASSERT_TRUE(Eventually([&] { return callers.answered() >= before + 100; }));
  callers.Stop();
  EXPECT_THAT(callers.failures(), IsEmpty());
}

TEST_F(Proxy, AKilledServerLosesNothingOfClientsThatTryAgain) {
  const std::unique_ptr<Client> client = NewClient();
  Callers callers(client.get(), 8);
  ASSERT_TRUE(Eventually([&] { return Answered(*servers_[0]) >= 20 && Answered(*servers_[1]) >= 20; }));
  servers_[0]->Signal(SIGKILL);
  const int64_t before = callers.answered();
  ASSERT_TRUE(Eventually([&] { return callers.answered() >= before + 100; }));
  callers.Stop();
  EXPECT_THAT(callers.failures(), IsEmpty());
}

}  // namespace
}  // namespace attend::deploy
