// Bearer tokens of a real server: who is refused and learns nothing from it, tokens exchanged under load, and
// secrets that stay where they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/certificates.h"
#include "tests/integration/eventually.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAlice[] = "alices-secret-0123456789";
constexpr char kBob[] = "bobs-secret-9876543210";
constexpr char kInfoMethod[] = "/attend.v1.InfoService/GetServerInfo";
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
constexpr char kReflectionMethod[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr char kRefused[] = "attend_rejected_total{reason=\"unauthenticated\"}";

std::string TwoCallers() { return absl::StrCat("alice ", kAlice, "\n# the other\nbob\t", kBob, "\n"); }

// One call with these values of the metadata authorization.
RawReply CallAs(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& authorization,
                const std::string& method = kAttendMethod, const std::string& message = SmallMessage()) {
  grpc::ClientContext context;
  for (const std::string& value : authorization) context.AddMetadata("authorization", value);
  return Call(channel, message, &context, method);
}

std::string Bearer(const std::string& token) { return "Bearer " + token; }

class TokensTest : public ::testing::Test {
 protected:
  std::string TokensFlag(const std::string& text = TwoCallers()) {
    return "--tokens-file=" + folder_.Write("tokens", text);
  }
  Folder folder_;
};

TEST_F(TokensTest, WhoHasOneIsServedUnderItsName) {
  ServerProcess server({TokensFlag()});
  ASSERT_TRUE(server.running()) << server.Log();
  const auto channel = server.Connect();
  EXPECT_TRUE(CallAs(channel, {Bearer(kAlice)}).status.ok());
  EXPECT_TRUE(CallAs(channel, {"bearer " + std::string(kBob)}).status.ok());
  EXPECT_TRUE(CallAs(channel, {Bearer(kAlice)}, kInfoMethod, "").status.ok());
  EXPECT_EQ(server.Stop(), 0);
  EXPECT_THAT(server.Log(), HasSubstr(" caller=alice "));
  EXPECT_THAT(server.Log(), HasSubstr(" caller=bob "));
}

TEST_F(TokensTest, WhoHasNoneLearnsNothing) {
  ServerProcess server({TokensFlag()});
  ASSERT_TRUE(server.running()) << server.Log();
  const auto channel = server.Connect();
  const std::string alice = kAlice;
  std::set<std::string> answers;
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"Bearer"},
                                                       {"Bearer "},
                                                       {Bearer(alice.substr(0, alice.size() - 1))},
                                                       {Bearer(alice + "0")},
                                                       {Bearer(" " + alice)},
                                                       {Bearer("alice")},
                                                       {Bearer("a-token-of-nobody-0123456789")},
                                                       {"Basic " + alice},
                                                       {alice},
                                                       {Bearer(alice), Bearer(alice)}};
  for (const std::vector<std::string>& authorization : wrong) {
    for (const std::string method :
         {kAttendMethod, kInfoMethod, kReflectionMethod, "/no.such.Service/Method"}) {
      const RawReply reply = CallAs(channel, authorization, method);
      EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
      answers.insert(reply.status.error_message() + reply.status.error_details());
    }
  }
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_EQ(Metric(server.metrics_port(), kRefused), static_cast<double>(wrong.size() * 4));
  // Nothing of any message was taken in.
  EXPECT_EQ(Metric(server.metrics_port(), "attend_wire_bytes_total{direction=\"received\",path=\"grpc\"}"),
            0);
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
}

TEST_F(TokensTest, ARefusalComesBeforeTheMessage) {
  ServerProcess server({TokensFlag()});
  ASSERT_TRUE(server.running()) << server.Log();
  grpc::ClientContext context;
  context.AddMetadata("attend-request-bytes", "1000000");
  // More than flow control lets through before somebody reads.
  EXPECT_EQ(Call(server.Connect(), std::string(1000000, 'x'), &context).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Metric(server.metrics_port(), "attend_wire_bytes_total{direction=\"received\",path=\"grpc\"}"),
            0);
  EXPECT_EQ(Metric(server.metrics_port(), "attend_receive_budget_bytes{kind=\"used\"}"), 0);
}

TEST_F(TokensTest, ProbesNeedNone) {
  ServerProcess server({TokensFlag()});
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_TRUE(CallAs(server.Connect(), {}, kHealthMethod, "").status.ok());
  EXPECT_THAT(HttpGet(server.metrics_port(), "/readyz"), HasSubstr("ready"));
  EXPECT_EQ(CallAs(server.Connect(), {Bearer(kAlice)}, "/no.such.Service/Method").status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(TokensTest, SecretsStayWhereTheyAre) {
  const Authority authority("authority");
  const Identity identity = authority.Issue();
  const std::vector<std::string> flags = {
      TokensFlag(), "--log-level=debug", "--tls-cert=" + folder_.Write("tls.crt", identity.cert),
      "--tls-key=" + folder_.Write("tls.key", identity.key), "--reload-interval=20ms"};
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = authority.cert();
  ServerProcess server(flags);
  ASSERT_TRUE(server.running()) << server.Log();
  const auto channel = server.Connect(grpc::SslCredentials(tls));
  EXPECT_TRUE(CallAs(channel, {Bearer(kAlice)}).status.ok());
  EXPECT_FALSE(CallAs(channel, {Bearer("a-wrong-secret-0123456789")}).status.ok());
  // Files that cannot be taken are complained of, without what stands in them.
  folder_.Write("tokens", absl::StrCat("alice ", kAlice, " ", kBob, "\n"));
  folder_.Write("tls.key", identity.key.substr(0, 100));
  ASSERT_TRUE(Eventually(
      [&] { return Metric(server.metrics_port(), "attend_reload_failures_total{files=\"tls\"}") > 1; }));
  const std::string metrics = HttpGet(server.metrics_port(), "/metrics");
  EXPECT_EQ(server.Stop(), 0);
  std::vector<std::string> printing = flags;
  printing.push_back("--print-config");
  ServerProcess printed(printing);
  EXPECT_EQ(printed.WaitForExit(), 0);
  EXPECT_THAT(printed.Log(), HasSubstr("tokens_file = \"" + folder_.path("tokens")));
  EXPECT_THAT(server.Log(), HasSubstr("line 1 is no 'name token'"));
  for (const std::string& text : {server.Log(), metrics, printed.Log()}) {
    for (const char* secret : {kAlice, kBob, "secret", "PRIVATE KEY", "BEGIN"}) {
      EXPECT_THAT(text, Not(HasSubstr(secret)));
    }
    EXPECT_THAT(text, Not(HasSubstr(identity.key.substr(60, 20))));
  }
}

TEST_F(TokensTest, AFileThatIsWrongIsNoStart) {
  const std::pair<std::string, const char*> wrong[] = {
      {"", "holds no token"},
      {"# alice left\n", "holds no token"},
      {"alice short\n", "line 1 is no 'name token'"},
      {absl::StrCat("alice ", kAlice), "does not end with a newline"},
      {absl::StrCat("alice ", kAlice, "\nal ice ", kBob, "\n"), "line 2 is no 'name token'"},
      {absl::StrCat("al/ice ", kAlice, "\n"), "line 1 is no 'name token'"},
      {absl::StrCat("alice ", kAlice, "\nbob ", kAlice, "\n"), "line 2 repeats the token"},
      {absl::StrCat(TwoCallers(), "carol carols-secret-0123456789\n"), "more than 2 tokens"}};
  for (const auto& [text, said] : wrong) {
    ServerProcess server({TokensFlag(text), "--tokens-max=2"});
    EXPECT_EQ(server.WaitForExit(), 1);
    EXPECT_THAT(server.Log(), HasSubstr(said));
  }
  ServerProcess missing({"--tokens-file=" + folder_.path("none")});
  EXPECT_EQ(missing.WaitForExit(), 1);
  EXPECT_THAT(missing.Log(), HasSubstr("cannot be read"));
}

// Opening one waits for a writer that never comes.
TEST_F(TokensTest, ANamedPipeHoldsUpNeitherStartNorEnd) {
  const std::string pipe = folder_.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ServerProcess refused({"--tokens-file=" + pipe});
  EXPECT_EQ(refused.WaitForExit(), 1);
  EXPECT_THAT(refused.Log(), HasSubstr("is no regular file"));

  ServerProcess server({TokensFlag(TwoCallers()), "--reload-interval=20ms"});
  ASSERT_TRUE(server.running());
  ASSERT_EQ(std::rename(pipe.c_str(), folder_.path("tokens").c_str()), 0);
  ASSERT_TRUE(Eventually([&] { return server.Log().find("is no regular file") != std::string::npos; }));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(), 0);
}

// alice's token is exchanged for the next, over and over: both are good while callers change.
TEST_F(TokensTest, ExchangesTokensUnderLoadAndLosesNoCall) {
  constexpr int kCallers = 4, kExchanges = 8;
  const auto token = [](int i) { return absl::StrCat("token-number-", i, "-0123456789"); };
  const auto line = [&](int i) { return absl::StrCat("alice ", token(i), "\n"); };
  ServerProcess server({TokensFlag(line(0)), "--reload-interval=20ms", "--log-calls-per-second=0"});
  ASSERT_TRUE(server.running()) << server.Log();
  std::atomic<bool> stop{false};
  std::atomic<int> current{0};
  std::atomic<int64_t> lost{0};
  std::array<std::atomic<int>, kCallers> used{};  // the token of each caller's last finished call
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const auto channel = server.Connect();
      while (!stop) {
        const int mine = current;
        const grpc::Status status = CallAs(channel, {Bearer(token(mine))}).status;
        if (!status.ok() && lost.fetch_add(1) < 5) ADD_FAILURE() << status.error_message();
        used[i] = mine;
      }
    });
  }
  const auto probe = server.Connect();
  const auto accepted = [&](int i) { return CallAs(probe, {Bearer(token(i))}).status.ok(); };
  for (int i = 1; i <= kExchanges; ++i) {
    folder_.Write("tokens", line(i - 1) + line(i));
    ASSERT_TRUE(Eventually([&] { return accepted(i); }));
    current = i;
    ASSERT_TRUE(Eventually(
        [&] { return std::all_of(used.begin(), used.end(), [&](const auto& mine) { return mine == i; }); }));
    folder_.Write("tokens", line(i));
    ASSERT_TRUE(Eventually([&] { return !accepted(i - 1); }));
    // Half a file changes nothing.
    const double failures = Metric(server.metrics_port(), "attend_reload_failures_total{files=\"tokens\"}");
    folder_.Write("tokens", line(i).substr(0, 20));
    ASSERT_TRUE(Eventually([&] {
      return Metric(server.metrics_port(), "attend_reload_failures_total{files=\"tokens\"}") > failures;
    }));
    EXPECT_TRUE(accepted(i));
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(server.Stop(), 0);
}

// Both call from one address; bob does not stand behind all that alice has asked for: 50 ms for each.
TEST_F(TokensTest, FairSharesGoByName) {
  constexpr int kAlices = 300, kBobs = 4;
  ServerProcess server({TokensFlag(), "--null-launch-time=50ms", "--device-slots=1", "--batch-requests-max=1",
                        "--queue-wait-percent-max=0"});
  ASSERT_TRUE(server.running()) << server.Log();
  const auto channel = server.Connect();
  std::atomic<int> alices_served{0};
  std::vector<std::thread> alices;
  for (int i = 0; i < kAlices; ++i) {
    alices.emplace_back([&] {
      if (CallAs(channel, {Bearer(kAlice)}).status.ok()) alices_served += 1;
    });
  }
  EXPECT_TRUE(Eventually([&] { return Metric(server.metrics_port(), "attend_queue_depth") > kAlices / 3; }));
  const int before = alices_served;
  for (int i = 0; i < kBobs; ++i) EXPECT_TRUE(CallAs(channel, {Bearer(kBob)}).status.ok());
  EXPECT_LT(alices_served - before, kAlices / 3);
  server.Signal(9);  // the rest of alice's is not waited for
  for (std::thread& alice : alices) alice.join();
}

}  // namespace
}  // namespace attend::integration
