// The client library and the tool against a real server with TLS, client certificates and tokens.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attend/client.h"
#include "attend/v1/attention.grpc.pb.h"
#include "tests/integration/certificates.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "alices-secret-0123456789";

class TlsClientTest : public ::testing::Test {
 protected:
  TlsClientTest() {
    Wish name;
    name.names = "DNS:attend.example";  // not where it is called
    const Identity server = authority_.Issue(name), client = clients_.Issue();
    flags_ = {"--tls-cert=" + folder_.Write("server.crt", server.cert),
              "--tls-key=" + folder_.Write("server.key", server.key),
              "--tls-client-ca=" + folder_.Write("clients.crt", clients_.cert()), "--tls-require-client-cert",
              "--tokens-file=" + folder_.Write("tokens", absl::StrCat("alice ", kToken, "\n"))};
    folder_.Write("ca.crt", authority_.cert());
    folder_.Write("client.crt", client.cert);
    folder_.Write("client.key", client.key);
    folder_.Write("token", absl::StrCat(kToken, "\n"));
    folder_.Write("wrong-token", "nobodys-secret-0123456789\n");
    options_.tls = TlsOptions{authority_.cert(), client.cert, client.key, "attend.example"};
    options_.token = kToken;
    options_.retry.attempts_max = 1;
    tool_flags_ = {"--tls-ca=" + folder_.path("ca.crt"), "--tls-cert=" + folder_.path("client.crt"),
                   "--tls-key=" + folder_.path("client.key"), "--tls-server-name=attend.example"};
  }

  // One call of attention with one query, whose answer is its value.
  static absl::Status Attend(const std::string& target, const ClientOptions& options) {
    auto client = Client::Create(target, options);
    if (!client.ok()) return client.status();
    const std::vector<float> ones(8, 1.0f);
    Request request;
    for (TensorView* view : {&request.q, &request.k, &request.v})
      *view = {DataType::kFp32, {1, 1, 1, 8}, ones.data()};
    return (*client)->Attend(request).status();
  }

  struct Ended {
    int code;
    std::string text;
  };
  static Ended Tool(std::vector<std::string> arguments, const std::vector<std::string>& flags = {}) {
    arguments.insert(arguments.begin(), ATTEND_TOOL);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ChildProcess tool(arguments);
    const int code = tool.Wait().value_or(-1);
    return {code, tool.Output()};
  }

  Folder folder_;
  Authority authority_{"authority"}, clients_{"clients"};
  std::vector<std::string> flags_, tool_flags_;
  ClientOptions options_;
};

TEST_F(TlsClientTest, TheLibraryIsServed) {
  ServerProcess server(flags_);
  ASSERT_TRUE(server.running()) << server.Log();
  EXPECT_EQ(Attend(server.target(), options_), absl::OkStatus());
  auto client = Client::Create(server.target(), options_);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->GetServerInfo().ok());
  EXPECT_TRUE((*client)->CheckHealth().ok());
}

TEST_F(TlsClientTest, TheLibraryIsRefused) {
  ServerProcess server(flags_);
  ASSERT_TRUE(server.running()) << server.Log();
  const auto code = [&](const ClientOptions& options) { return Attend(server.target(), options).code(); };
  ClientOptions options = options_;
  options.token = "nobodys-secret-0123456789";
  EXPECT_EQ(code(options), absl::StatusCode::kUnauthenticated);
  options.token = "";
  EXPECT_EQ(code(options), absl::StatusCode::kUnauthenticated);
  options = options_;
  options.tls->root_certificates_pem = clients_.cert();
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
  options = options_;
  options.tls->server_name = "";  // 127.0.0.1, which the certificate does not name
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
  options = options_;
  options.tls->certificate_pem = options.tls->private_key_pem = "";
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
  const Identity stranger = authority_.Issue();
  options.tls->certificate_pem = stranger.cert;
  options.tls->private_key_pem = stranger.key;
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
  options = options_;
  options.tls.reset();
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
  options = options_;
  options.tls->private_key_pem = "";
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
}

// attend-server does not show a certificate that has expired; another server does.
TEST_F(TlsClientTest, TheLibraryTrustsNoExpiredServer) {
  Wish wish;
  wish.names = "DNS:attend.example";
  for (const bool expired : {false, true}) {
    if (expired) wish.until = -absl::Minutes(1);
    const Identity identity = authority_.Issue(wish);
    grpc::SslServerCredentialsOptions ssl;
    ssl.pem_key_cert_pairs.push_back({identity.key, identity.cert});
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port);
    v1::AttentionService::Service service;  // answers UNIMPLEMENTED
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    const absl::Status status = Attend(absl::StrCat("127.0.0.1:", port), [&] {
      ClientOptions options = options_;
      options.health_check = false;
      return options;
    }());
    EXPECT_EQ(status.code(), expired ? absl::StatusCode::kUnavailable : absl::StatusCode::kUnimplemented)
        << status;
    if (expired) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("certificate verify failed"));
    }
  }
}

TEST_F(TlsClientTest, TheToolIsServedByFlagsAndByTheEnvironment) {
  ServerProcess server(flags_);
  ASSERT_TRUE(server.running()) << server.Log();
  const std::string address = "--address=" + server.target();
  const Ended run = Tool({"check", "--batch=1", "--heads=1", "--length=4", "--head-dim=8", address,
                          "--token-file=" + folder_.path("token"), "--json"},
                         tool_flags_);
  EXPECT_THAT(run.text, HasSubstr("\"checks\"")) << run.text;  // of the null device's zeros
  EXPECT_EQ(Tool({"info", address, "--token-file=" + folder_.path("token")}, tool_flags_).code, 0);
  const Ended refused = Tool({"info", address, "--token-file=" + folder_.path("wrong-token")}, tool_flags_);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("UNAUTHENTICATED"), Not(HasSubstr("secret"))));
  EXPECT_EQ(Tool({"info", address}, tool_flags_).code, 1);
  // A probe needs no token.
  EXPECT_EQ(Tool({"health", address}, tool_flags_).code, 0);
  // Without TLS, or without the certificate that the server asks for.
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {tool_flags_[0], tool_flags_[3]}}) {
    const Ended closed = Tool({"health", address, "--timeout-s=5"}, flags);
    EXPECT_EQ(closed.code, 1);
    EXPECT_THAT(closed.text, HasSubstr("does it ask for TLS, or for a client certificate?"));
  }

  const std::pair<const char*, std::string> environment[] = {{"ATTEND_ADDRESS", server.target()},
                                                             {"ATTEND_TLS_CA", folder_.path("ca.crt")},
                                                             {"ATTEND_TLS_CERT", folder_.path("client.crt")},
                                                             {"ATTEND_TLS_KEY", folder_.path("client.key")},
                                                             {"ATTEND_TLS_SERVER_NAME", "attend.example"},
                                                             {"ATTEND_TOKEN_FILE", folder_.path("token")}};
  for (const auto& [name, value] : environment) setenv(name, value.c_str(), 1);
  const Ended info = Tool({"info"});
  for (const auto& [name, value] : environment) unsetenv(name);
  EXPECT_EQ(info.code, 0) << info.text;
}

TEST_F(TlsClientTest, TheToolKeepsATokenOffThePlainNetwork) {
  const std::vector<std::string> elsewhere = {"info", "--address=192.0.2.1:1", "--timeout-s=0.1",
                                              "--token-file=" + folder_.path("token")};
  const Ended refused = Tool(elsewhere);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("plain text"), HasSubstr("attend --tls"),
                                  HasSubstr("attend --insecure"), Not(HasSubstr("secret"))));
  // Said to, it tries, and nobody is there.
  EXPECT_THAT(Tool(elsewhere, {"--insecure"}).text, Not(HasSubstr("plain text")));
  const Ended missing = Tool({"info", "--token-file=" + folder_.path("none")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.text, HasSubstr(folder_.path("none")));
}

}  // namespace
}  // namespace attend::integration
