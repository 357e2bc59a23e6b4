// Where a value comes from, what is refused, and that the README lists what the code has.
#include "server/process/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/metrics/metric_table.h"

namespace attend::server {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

ParsedOptions Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "attend-server");
  return ParseOptions(static_cast<int>(flags.size()), flags.data());
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::string ConfigFile(const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attend-options-test-", getpid(), ".toml");
  std::ofstream(path) << text;
  return absl::StrCat("--config=", path);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Options, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string config = ConfigFile("queue_requests_max = 10\nbatch_requests_max = 10\ncalls_max = 10\n");
  const Variable queue("ATTEND_QUEUE_REQUESTS_MAX", "20");
  const Variable batch("ATTEND_BATCH_REQUESTS_MAX", "20");
  const ParsedOptions parsed = Parse({config.c_str(), "--queue-requests-max=30"});
  ASSERT_EQ(parsed.exit_code, -1);
  EXPECT_EQ(parsed.options.queue_requests_max, 30);
  EXPECT_EQ(parsed.options.batch_requests_max, 20);
  EXPECT_EQ(parsed.options.calls_max, 10);
  EXPECT_EQ(parsed.options.heads_max, ServerOptions().heads_max);
}

TEST(Options, TheFileMayBeNamedByTheEnvironment) {
  const std::string flag = ConfigFile("queue_requests_max = 10\n");
  const Variable named("ATTEND_CONFIG", flag.c_str() + std::strlen("--config="));
  const ParsedOptions parsed = Parse({});
  ASSERT_EQ(parsed.exit_code, -1);
  EXPECT_EQ(parsed.options.queue_requests_max, 10);
  EXPECT_TRUE(parsed.warnings.empty());
}

TEST(Options, PrintedConfigReadsBackAsItself) {
  ParsedOptions parsed = Parse({"--request-bytes-max=3MiB", "--drain-timeout=1m30s", "--insecure",
                                "--port-file=/x y", "--reflection=false"});
  ASSERT_EQ(parsed.exit_code, -1);
  const std::string printed = PrintConfig(parsed.options);
  const std::string config = ConfigFile(printed);
  const ParsedOptions again = Parse({config.c_str()});
  ASSERT_EQ(again.exit_code, -1);
  EXPECT_EQ(PrintConfig(again.options), printed);
  EXPECT_EQ(again.options.request_bytes_max, 3 << 20);
  EXPECT_EQ(again.options.drain_timeout, absl::Seconds(90));
  EXPECT_EQ(again.options.port_file, "/x y");
  EXPECT_TRUE(again.options.insecure);
  EXPECT_FALSE(again.options.reflection);
}

TEST(Options, WhatIsWrongIsRefused) {
  for (const char* flag :
       {"--queue-requests-max=0", "--queue-requests-max=many", "--request-bytes-max=1TiBs",
        "--drain-timeout=-1s", "--drain-timeout=5", "--device=tpu", "--reflection=perhaps", "--no-such-flag",
        "--grpc-threads=100000", "--wire-threads=100000", "--cpu-threads=100000", "--cpu-slots=100000",
        "--device-slots=100000", "--streams-max=4294967296", "--metadata-bytes-max=4GiB",
        "--request-bytes-max=2GiB", "--response-bytes-max=3GiB"}) {
    EXPECT_EQ(Parse({flag}).exit_code, 2) << flag;
  }
  const std::string config = ConfigFile("no_such_option = 1\n");
  EXPECT_EQ(Parse({config.c_str()}).exit_code, 2);
  EXPECT_EQ(Parse({"--config=/no/such/file.toml"}).exit_code, 2);
  EXPECT_EQ(Parse({"--config=/dev/null"}).exit_code, 2) << "no regular file";
  for (const char* const path : {"/no/such/file.toml", "/dev/null"}) {
    const Variable named("ATTEND_CONFIG", path);
    EXPECT_EQ(Parse({}).exit_code, 2) << path;
  }
  ServerOptions options;
  for (const char* const devices : {"0,x", "-1", "", "0,1,0"}) {
    options.devices = devices;
    EXPECT_FALSE(ResolveOptions(&options).ok()) << devices;
  }
}

// What ResolveOptions says of these addresses; empty: they are served.
std::string Refusal(const std::string& addresses, const std::function<void(ServerOptions*)>& adjust = {}) {
  ServerOptions options;
  options.address = addresses;
  if (adjust) adjust(&options);
  return std::string(ResolveOptions(&options).message());
}

// CLI11 would take --tokens-file for the port file's name, and serve without tokens.
TEST(Options, AFlagWithoutItsValueDoesNotTakeTheNext) {
  const ParsedOptions parsed = Parse({"--port-file=", "--tokens-file=tokens"});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_EQ(Parse({"--tokens-file=a=", "--port-file=b"}).options.tokens_file, "a=");
}

TEST(Options, WhatOtherMachinesReachNeedsTlsOrAWord) {
  for (const char* local :
       {"127.0.0.1:0", "127.8.9.10:1", "[::1]:0", "localhost:0", "unix:/x", "unix:y,localhost:0"}) {
    EXPECT_EQ(Refusal(local), "") << local;
  }
  const auto tls = [](ServerOptions* options) { options->tls_cert = options->tls_key = "x"; };
  const auto insecure = [](ServerOptions* options) { options->insecure = true; };
  const auto tokens = [](ServerOptions* options) { options->tokens_file = "x"; };
  for (const char* open :
       {"0.0.0.0:0", "[::]:0", ":0", "example.com:0", "127.evil.example:0", "unix:/x,10.0.0.1:0"}) {
    EXPECT_THAT(Refusal(open), HasSubstr("--insecure")) << open;
    EXPECT_THAT(Refusal(open, tokens), HasSubstr("tokens would travel there in plain text")) << open;
    EXPECT_EQ(Refusal(open, tls), "") << open;
    EXPECT_EQ(Refusal(open, insecure), "") << open;
  }
}

TEST(Options, AnAddressHasAPort) {
  for (const char* wrong : {"", ",", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                            "127.0.0.1:x", "unix:/x,", "unix-abstract:x"}) {
    EXPECT_THAT(Refusal(wrong), HasSubstr("give host:port, with a port from 0 to 65535, or unix:path"))
        << wrong;
  }
  EXPECT_EQ(Refusal("127.0.0.1:65535"), "");
}

TEST(Options, TlsOptionsGoTogether) {
  const auto refusal = [](const std::function<void(ServerOptions*)>& adjust) {
    return Refusal("127.0.0.1:0", adjust);
  };
  EXPECT_THAT(refusal([](ServerOptions* o) { o->tls_cert = "x"; }), HasSubstr("--tls-key"));
  EXPECT_THAT(refusal([](ServerOptions* o) { o->tls_key = "x"; }), HasSubstr("--tls-cert"));
  EXPECT_THAT(refusal([](ServerOptions* o) { o->tls_client_ca = "x"; }), HasSubstr("needs --tls-cert"));
  EXPECT_THAT(refusal([](ServerOptions* o) {
                o->tls_cert = o->tls_key = "x";
                o->tls_require_client_cert = true;
              }),
              HasSubstr("needs --tls-client-ca"));
}

TEST(Options, ErrorsNameTheProgramAndTheOption) {
  ::testing::internal::CaptureStderr();
  Parse({"--no-such-flag"});
  Parse({"--drain-timeout=5"});
  Parse({"--request-bytes-max=3GiB"});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, ContainsRegex("attend-server: [^\n]*--no-such-flag"));
  EXPECT_THAT(text, ContainsRegex("attend-server: [^\n]*--drain-timeout"));
  EXPECT_THAT(text, HasSubstr("--request-bytes-max: is 3221225472, but the most is 2147483647"));
}

TEST(Options, UnknownVariablesAreNamed) {
  const Variable typo("ATTEND_QUEUE_REQUEST_MAX", "20");
  const ParsedOptions parsed = Parse({});
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_THAT(parsed.warnings[0], HasSubstr("ATTEND_QUEUE_REQUEST_MAX"));
}

TEST(Options, SizesFollowFromEachOther) {
  ServerOptions options;
  options.receive_bytes_max = 8 << 20;  // 1 MiB of it for small requests
  options.host_bytes_max = 1 << 22;
  ASSERT_TRUE(ResolveOptions(&options).ok());
  EXPECT_EQ(options.request_bytes_max, 7 << 20);  // larger ones could never be let in
  EXPECT_EQ(options.unannounced_request_bytes, 4 << 20);
  EXPECT_EQ(options.queue_bytes_max, 1 << 22);
  EXPECT_GT(options.cpu_threads, 0);
}

// The README's text of a cell.
std::string Cell(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Readme, ListsEveryOption) {
  const std::string readme = ReadFile("server/README.md");
  EXPECT_EQ(Count(readme, "| `--"), static_cast<int>(OptionTable().size()));
  for (const OptionRow& row : OptionTable()) {
    const std::string choices = row.choices == nullptr ? "" : absl::StrCat(" (", row.choices, ")");
    const std::string value = OptionValue(row, ServerOptions());
    const std::string shown = value.empty() ? "" : absl::StrCat("`", value, "`");
    EXPECT_THAT(readme, HasSubstr(absl::StrCat("| `--", row.name, "` | ", shown, " | ",
                                               Cell(absl::StrCat(row.help, choices)), " |\n")));
  }
}

TEST(Readme, ListsEveryMetric) {
  const std::string readme = ReadFile("server/README.md");
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  EXPECT_EQ(Count(readme, "| `attend_") + Count(readme, "| `grpc_") + Count(readme, "| `process_"),
            static_cast<int>(MetricTable().size()));
  for (const MetricRow& row : MetricTable()) {
    EXPECT_THAT(readme, HasSubstr(absl::StrCat("| `", row.name, "` | ", kTypes[static_cast<size_t>(row.type)],
                                               " | ", row.labels, " | ", row.help, " |\n")));
  }
}

}  // namespace
}  // namespace attend::server
