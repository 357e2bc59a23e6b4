// TLS and client certificates of a real server: who gets in, and certificates exchanged under load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/integration/certificates.h"
#include "tests/integration/eventually.h"
#include "tests/integration/processes.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr char kExpiry[] = "attend_tls_certificate_expiry_timestamp_seconds";
constexpr char kFailures[] = "attend_reload_failures_total{files=\"tls\"}";

std::shared_ptr<grpc::ChannelCredentials> Tls(const std::string& roots, const Identity& own = {}) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = roots;
  options.pem_cert_chain = own.cert;
  options.pem_private_key = own.key;
  return grpc::SslCredentials(options);
}

grpc::Status CallOnce(const std::shared_ptr<grpc::Channel>& channel) {
  return Call(channel, SmallMessage()).status;
}

class TlsTest : public ::testing::Test {
 protected:
  // Writes the pair and gives the flags that name it.
  std::vector<std::string> Serve(const Identity& identity) {
    return {"--tls-cert=" + folder_.Write("tls.crt", identity.cert),
            "--tls-key=" + folder_.Write("tls.key", identity.key), "--reload-interval=20ms"};
  }
  std::vector<std::string> Serve(const Identity& identity, const std::string& client_roots, bool require) {
    std::vector<std::string> flags = Serve(identity);
    flags.push_back("--tls-client-ca=" + folder_.Write("clients.crt", client_roots));
    if (require) flags.push_back("--tls-require-client-cert");
    return flags;
  }

  Folder folder_;
  Authority authority_{"authority"}, other_{"other authority"};
};

TEST_F(TlsTest, ServesThoseWhoTrustItAndNobodyInPlainText) {
  ServerProcess server(Serve(authority_.Issue()));
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
  const grpc::Status stranger = CallOnce(server.Connect(Tls(other_.cert())));
  EXPECT_EQ(stranger.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(stranger.error_message(), HasSubstr("certificate verify failed"));
  EXPECT_EQ(CallOnce(server.Connect()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, NeedsNoInsecureOnEveryAddress) {
  std::vector<std::string> flags = Serve(authority_.Issue());
  flags.push_back("--address=0.0.0.0:0");
  ServerProcess server(flags);
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
  EXPECT_THAT(server.Log(), HasSubstr("whoever reaches this server may call it"));
}

TEST_F(TlsTest, AHostOfSeveralAddressesHasOnePort) {
  std::vector<std::string> flags = Serve(authority_.Issue());
  flags.push_back("--address=localhost:0");
  ServerProcess server(flags);
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
}

TEST_F(TlsTest, TheNameHasToBeTheServers) {
  Wish elsewhere;
  elsewhere.names = "DNS:attend.example";
  ServerProcess server(Serve(authority_.Issue(elsewhere)));
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_EQ(CallOnce(server.Connect(Tls(authority_.cert()))).error_code(), grpc::StatusCode::UNAVAILABLE);
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride("attend.example");
  EXPECT_TRUE(CallOnce(grpc::CreateCustomChannel(server.target(), Tls(authority_.cert()), args)).ok());
}

TEST_F(TlsTest, ClientsThatHaveToShowACertificate) {
  ServerProcess server(Serve(authority_.Issue(), other_.cert(), true));
  ASSERT_TRUE(server.running()) << server.Log();
  const auto code = [&](const Identity& own) {
    return CallOnce(server.Connect(Tls(authority_.cert(), own))).error_code();
  };
  Wish expired, tomorrow;
  expired.until = -absl::Minutes(1);
  tomorrow.from = absl::Hours(24);
  tomorrow.until = absl::Hours(48);
  EXPECT_EQ(code(other_.Issue()), grpc::StatusCode::OK);
  EXPECT_EQ(code({}), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(code(authority_.Issue()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(code(other_.Issue(expired)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(code(other_.Issue(tomorrow)), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ClientsThatMayShowACertificate) {
  ServerProcess server(Serve(authority_.Issue(), other_.cert(), false));
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert(), other_.Issue()))).ok());
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
  EXPECT_FALSE(CallOnce(server.Connect(Tls(authority_.cert(), authority_.Issue()))).ok());
}

TEST_F(TlsTest, DoesNotStartWithAPairThatIsNone) {
  const Identity good = authority_.Issue();
  Wish expired, tomorrow, weak;
  expired.until = -absl::Minutes(1);
  tomorrow.from = absl::Hours(1);
  weak.rsa_bits = 512;
  const std::pair<Identity, const char*> wrong[] = {
      {{good.cert, authority_.Issue().key}, "does not fit the certificate"},
      {{good.cert.substr(0, good.cert.size() / 2), good.key}, "a certificate cannot be read"},
      {{good.cert, good.key.substr(0, good.key.size() / 2)}, "holds no whole private key"},
      {{"", good.key}, "holds no certificate"},
      {authority_.Issue(expired), "has expired"},
      {authority_.Issue(tomorrow), "is not valid yet"},
      {authority_.Issue(weak), "too small"},
  };
  for (const auto& [identity, said] : wrong) {
    for (const bool check : {false, true}) {
      std::vector<std::string> flags = Serve(identity);
      if (check) flags.push_back("--check-config");
      ServerProcess server(flags);
      EXPECT_FALSE(server.running());
      EXPECT_EQ(server.WaitForExit(), check ? 2 : 1);
      EXPECT_THAT(server.Log(), HasSubstr(said));
      EXPECT_THAT(server.Log(), HasSubstr(folder_.path("tls.")));
      EXPECT_THAT(server.Log(), Not(HasSubstr("PRIVATE KEY")));
    }
  }
}

// deploy/systemd/attend-server.toml, with the files that it names in a folder of the test.
TEST_F(TlsTest, TheExampleConfigurationIsRight) {
  std::ostringstream example;
  example << std::ifstream("deploy/systemd/attend-server.toml").rdbuf();
  const std::string here = absl::StrReplaceAll(example.str(), {{"/etc/attend", folder_.path("")}});
  const std::string mutual = absl::StrReplaceAll(here, {{"# tls_", "tls_"}});
  ASSERT_THAT(mutual, HasSubstr("\ntls_require_client_cert = true"));
  const Identity identity = authority_.Issue();
  folder_.Write("tls.crt", identity.cert);
  folder_.Write("tls.key", identity.key);
  folder_.Write("clients.crt", other_.cert());
  const auto check = [&](const std::string& config) {
    ChildProcess server(
        {std::getenv("ATTEND_SERVER"), "--config=" + folder_.Write("attend.toml", config), "--check-config"});
    const int code = server.Wait().value_or(-1);
    return std::pair(code, server.Output());
  };
  EXPECT_THAT(check(here), Pair(2, HasSubstr(folder_.path("/tokens: cannot be read"))));
  folder_.Write("tokens", "alice alices-secret-0123456789\n");
  EXPECT_THAT(check(here), Pair(0, HasSubstr("the configuration is right\n")));
  EXPECT_THAT(check(mutual), Pair(0, HasSubstr("the configuration is right\n")));

  ServerProcess server({"--config=" + folder_.Write("attend.toml", mutual), "--address=0.0.0.0:0"});
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_EQ(CallOnce(server.Connect(Tls(authority_.cert(), other_.Issue()))).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsTest, AWrongPairLeavesTheOldOneInForce) {
  const Identity first = authority_.Issue();
  ServerProcess server(Serve(first));
  ASSERT_TRUE(server.running()) << server.Log();
  const double expiry = Metric(server.metrics_port(), kExpiry);
  EXPECT_EQ(Metric(server.metrics_port(), kFailures), 0);
  const Identity second = authority_.Issue();
  folder_.Write("tls.key", second.key);
  ASSERT_TRUE(Eventually([&] { return Metric(server.metrics_port(), kFailures) >= 2; }));
  EXPECT_EQ(SerialShownBy(server.port()), Serial(first.cert));
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
  EXPECT_EQ(Metric(server.metrics_port(), kExpiry), expiry);
  EXPECT_THAT(server.Log(), HasSubstr("cannot reload; what was loaded before stays in force"));
  // And the certificate that belongs to it makes it whole.
  folder_.Write("tls.crt", second.cert);
  EXPECT_TRUE(Eventually([&] { return SerialShownBy(server.port()) == Serial(second.cert); }));
  EXPECT_TRUE(CallOnce(server.Connect(Tls(authority_.cert()))).ok());
}

TEST_F(TlsTest, TheExpiryIsThatOfTheCertificate) {
  Wish wish;
  wish.until = absl::Hours(5);
  const absl::Time before = absl::Now();
  ServerProcess server(Serve(authority_.Issue(wish)));
  ASSERT_TRUE(server.running()) << server.Log();
  const double expiry = Metric(server.metrics_port(), kExpiry);
  EXPECT_GE(expiry, static_cast<double>(absl::ToUnixSeconds(before + wish.until)) - 1);
  EXPECT_LE(expiry, static_cast<double>(absl::ToUnixSeconds(absl::Now() + wish.until)) + 1);
}

// Callers come and go (connections live for 200 ms) while certificates and the clients' roots are exchanged.
// Nothing tries again: a call that is lost is a call that failed.
TEST_F(TlsTest, ExchangesCertificatesUnderLoadAndLosesNoCall) {
  constexpr int kCallers = 4, kExchanges = 10;
  std::vector<std::string> flags = Serve(authority_.Issue(), authority_.cert() + other_.cert(), true);
  flags.insert(flags.end(), {"--connection-age-max=200ms", "--log-calls-per-second=0"});
  ServerProcess server(flags);
  ASSERT_TRUE(server.running()) << server.Log();
  const auto old_client = server.Connect(Tls(authority_.cert(), authority_.Issue()));
  ASSERT_TRUE(CallOnce(old_client).ok());

  std::atomic<bool> stop{false};
  std::atomic<int64_t> calls{0}, lost{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      const Identity own = other_.Issue();
      auto channel = server.Connect(Tls(authority_.cert(), own));
      for (int64_t n = 1; !stop; ++n) {
        if (n % 50 == 0) channel = server.Connect(Tls(authority_.cert(), own));
        const grpc::Status status = CallOnce(channel);
        calls += 1;
        if (!status.ok() && lost.fetch_add(1) < 5) ADD_FAILURE() << status.error_message();
      }
    });
  }
  for (int i = 0; i < kExchanges; ++i) {
    const Identity next = authority_.Issue();
    // The key first: between the two the pair is wrong.
    folder_.Write("tls.key", next.key);
    folder_.Write("tls.crt", next.cert);
    ASSERT_TRUE(Eventually([&] { return SerialShownBy(server.port()) == Serial(next.cert); }));
  }
  // The clients' roots, too: from now on the other authority's alone.
  folder_.Write("clients.crt", other_.cert());
  EXPECT_TRUE(
      Eventually([&] { return !CallOnce(server.Connect(Tls(authority_.cert(), authority_.Issue()))).ok(); }));
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(calls, kExchanges);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(server.Stop(), 0);
}

}  // namespace
}  // namespace attend::integration
