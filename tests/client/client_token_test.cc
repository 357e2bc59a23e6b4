// A client's bearer token: where it comes from, and where it is kept from going.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "attend/client.h"
#include "tests/client/client_fixture.h"
#include "tests/client/test_server.h"

namespace attend {
namespace {

using testing::Inputs;
using testing::NewClient;
using testing::TestServer;

TEST(Client, KeepsATokenOffThePlainNetwork) {
  ClientOptions options;
  options.token = "secret";
  EXPECT_TRUE(Client::Create("unix:/tmp/attend.sock", options).ok());
  EXPECT_TRUE(Client::Create("dns:///localhost:1", options).ok());
  for (const char* target : {"example.com:1", "dns:///10.0.0.1:1", "xds:///attend", "localhost.example.com:1",
                             "ipv4:127.0.0.1:1,10.0.0.1:1"}) {
    EXPECT_EQ(Client::Create(target, options).status().code(), absl::StatusCode::kInvalidArgument) << target;
  }
  options.allow_token_without_tls = true;
  EXPECT_TRUE(Client::Create("example.com:1", options).ok());
}

TEST(Client, TakesATokenThatIsExchangedInItsFile) {
  TestServer server;
  const std::string path = absl::StrCat(::testing::TempDir(), "/attend-token-", getpid());
  ClientOptions options;
  options.token_file = path;
  EXPECT_EQ(Client::Create(server.address(), options).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path) << " first\n";
  EXPECT_EQ(Client::Create("example.com:1", options).status().code(), absl::StatusCode::kInvalidArgument);
  const auto client = NewClient(server.address(), options);
  Inputs inputs({1, 1, 4, 8});
  const auto sent = [&] {
    EXPECT_TRUE(client->Attend(inputs.request).ok());
    return server.calls().back().authorization;
  };
  EXPECT_EQ(sent(), "Bearer first");
  const auto becomes = [&](const std::string& token) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (sent() != token && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
    return sent() == token;
  };
  std::ofstream(path) << "second";
  EXPECT_TRUE(becomes("Bearer second"));
  // What is no token, and no file at all, is not taken.
  std::ofstream(path) << "";
  absl::SleepFor(absl::Milliseconds(1100));
  EXPECT_EQ(sent(), "Bearer second");
  unlink(path.c_str());
  absl::SleepFor(absl::Milliseconds(1100));
  EXPECT_EQ(sent(), "Bearer second");
}

TEST(Client, RefusesTokensThatCannotBeSentWithoutRepeatingThem) {
  ClientOptions options;
  for (const std::string token : {"two words", "line\nbreak", "caf\xc3\xa9"}) {
    options.token = token;
    const absl::Status status = Client::Create("localhost:1", options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr(token)));
  }
  options.token = "one";
  options.token_file = "/and/a/file";
  EXPECT_EQ(Client::Create("localhost:1", options).status().code(), absl::StatusCode::kInvalidArgument);
}

// A proxy of the environment sees nothing of what goes to this host.
TEST(Client, ReachesThisHostWithoutAProxy) {
  TestServer server;
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  const auto client = NewClient("dns:///" + server.address());
  Inputs inputs({1, 1, 4, 8});
  EXPECT_TRUE(client->Attend(inputs.request).ok());
  unsetenv("http_proxy");
}

}  // namespace
}  // namespace attend
