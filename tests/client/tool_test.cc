// The attend tool as people run it, against an ordinary server that answers with the float64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "attend_version.h"
#include "client/cli/accuracy.h"
#include "client/cli/compare.h"
#include "client/cli/inputs.h"
#include "client/cli/reference.h"
#include "tests/client/test_server.h"

namespace attend {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TestServer;

// A folder of this process's own: runs of other builds share the machine.
std::string Scratch(const std::string& name) {
  struct Folder {
    Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path = ::testing::TempDir() + "/attend-cli-test-XXXXXX";
  };
  static const Folder folder;
  return folder.path + "/" + name;
}

struct Outcome {
  int code = -1;         // 128 + the signal that ended it
  std::string out, err;  // standard output and error: gRPC may write to the latter by itself
  std::string text;      // both
};

Outcome Tool(const std::string& arguments, const std::string& address = "localhost:1") {
  const std::string err = Scratch("stderr");
  const std::string command = "ATTEND_ADDRESS=" + address + " " + ATTEND_TOOL + " " + arguments + " 2>" + err;
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n = fread(buffer, 1, sizeof(buffer), pipe); n > 0; n = fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.out.append(buffer, n);
  }
  const int status = pclose(pipe);
  outcome.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.err = (std::stringstream() << std::ifstream(err).rdbuf()).str();
  outcome.text = outcome.out + outcome.err;
  return outcome;
}

TEST(Tool, SaysItsVersionAndHelp) {
  EXPECT_EQ(Tool("--version").text, "attend " ATTEND_VERSION "\n");
  EXPECT_EQ(Tool("--help").code, 0);
  EXPECT_EQ(Tool("bench load --help").code, 0);
  // The options that every command takes are not listed again.
  EXPECT_THAT(Tool("info --help").text, HasSubstr("`attend --help`"));
  EXPECT_THAT(Tool("bench load --help").text, HasSubstr("`attend --help`"));
}

TEST(Tool, WrongCommandLinesEndWith2) {
  for (const char* arguments :
       {"", "fly", "run", "run a", "check --dtype fp8", "bench", "explain --chunk 0", "bench --service load",
        "bench --service --row 1,2,3", "bench load --rate 5 --concurrency 2", "bench load --rate 1e300",
        "bench load --duration-s nan", "bench load --warmup-s nan", "info --timeout-s nan",
        "bench --service --row-seconds nan", "bench ladder --seconds-each nan",
        "bench --service --tolerance nan", "health --wait-s nan", "run a b --weights --weight-rows 1"}) {
    EXPECT_EQ(Tool(arguments).code, 2) << arguments;
  }
}

TEST(Tool, SaysWhatIsWrongAndWhereToLook) {
  EXPECT_EQ(Tool("fly").text,
            "attend: there is no command 'fly'; there are run, explain, check, bench, info, health, demo\n"
            "`attend --help` says more.\n");
  EXPECT_THAT(Tool("bench fly").text,
              AllOf(HasSubstr("'fly'; there are ladder, load"), HasSubstr("`attend bench --help`")));
  EXPECT_THAT(Tool("bench").text, HasSubstr("--service, ladder and load"));
  EXPECT_THAT(Tool("info --address= --json").text, StartsWith("attend: --address=: has no value"));
  EXPECT_THAT(Tool("run a b --lsr").text,
              AllOf(StartsWith("attend: "), HasSubstr("--lsr"), HasSubstr("`attend run --help`")));
}

// Before the call, and as the system says it: no code of the API.
TEST(Tool, AnOutputThatCannotBeCreatedIsNamed) {
  TestServer server;
  const std::string input = "run tests/data/minilm/layer0.safetensors ";
  const Outcome nowhere = Tool(input + "/no/such/folder/out", server.address());
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_EQ(nowhere.text, "attend: /no/such/folder/out: cannot be created: No such file or directory\n");
  const Outcome folder = Tool(input + ::testing::TempDir(), server.address());
  EXPECT_EQ(folder.code, 1);
  EXPECT_THAT(folder.text, HasSubstr("Is a directory"));
  EXPECT_EQ(Tool("run no/such/file out", server.address()).text,
            "attend: no/such/file: No such file or directory\n");
  EXPECT_EQ(Tool("run tests out", server.address()).text, "attend: tests: Is a directory\n");
  // Like /dev/null, but of no worth to this machine.
  const std::string pipe = Scratch("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Tool(input + pipe, server.address()).text,
            "attend: " + pipe + ": cannot be replaced: is no regular file\n");
  EXPECT_TRUE(server.calls().empty());
}

// Reading them would wait for a writer, or never end.
TEST(Tool, AnInputThatIsNoRegularFileIsNamed) {
  const std::string pipe = Scratch("input-pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    const std::string expected = "attend: " + path + ": cannot be read: is no regular file\n";
    EXPECT_EQ(Tool("run " + path + " out").text, expected);
    EXPECT_THAT(Tool("check " + path).text, HasSubstr("is no regular file"));
    EXPECT_THAT(Tool("info --tls-ca " + path).text, HasSubstr("is no regular file"));
  }
}

TEST(Tool, AServerThatIsNotThereEndsWith1AndSaysSo) {
  const Outcome outcome = Tool("info --timeout-s 5");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("UNAVAILABLE"), Not(HasSubstr("TLS"))));
  EXPECT_EQ(Tool("health").code, 1);
  EXPECT_EQ(Tool("run no/such/file out").code, 1);
}

TEST(Tool, RunsAFile) {
  TestServer server;
  const std::string in = Scratch("in.safetensors"), out = Scratch("out.safetensors");
  const cli::Inputs inputs = cli::RandomInputs({1, 2, 20, 8}, DataType::kFp16, 3);
  const float sinks[] = {1, 2};
  ASSERT_TRUE(cli::WriteSafetensors(in, {{"q", inputs.request.q},
                                         {"k", inputs.request.k},
                                         {"v", inputs.request.v},
                                         {"sinks", {DataType::kFp32, {2}, sinks}}})
                  .ok());
  const Outcome outcome = Tool("run " + in + " " + out +
                                   " --causal top-left --window-left 7 --scale 0.5 --softcap 9 --lse "
                                   "--weight-rows 3,1 --kernel flash --request-id abc",
                               server.address());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  ASSERT_EQ(server.calls().size(), 1u);
  EXPECT_EQ(server.calls()[0].request_id, "abc");
  EXPECT_EQ(server.calls()[0].request.kernel(), v1::KERNEL_FLASH);

  Request want = inputs.request;
  want.sinks = {DataType::kFp32, {2}, sinks};
  want.causal = Causal::kTopLeft;
  want.window_left = 7;
  want.scale = 0.5f;
  want.softcap = 9.0f;
  want.return_lse = true;
  want.weight_rows = {3, 1};
  const auto reference = cli::Reference(want);
  const auto file = cli::Safetensors::Read(out);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("out")->dtype, DataType::kFp16);
  EXPECT_LT(cli::Compare(*file->Find("out"), reference->out).max, 2e-3);
  EXPECT_LT(cli::Compare(*file->Find("lse"), reference->lse).max, 1e-6);
  EXPECT_LT(cli::Compare(*file->Find("weights"), reference->weights).max, 1e-6);
}

TEST(Tool, ChecksAndSaysWhatIsOff) {
  TestServer server;
  const std::string flags = "check --batch 1 --heads 2 --length 30 --head-dim 8";
  const Outcome good = Tool(flags + " --json", server.address());
  EXPECT_EQ(good.code, 0) << good.text;
  const auto json = nlohmann::json::parse(good.out);
  EXPECT_TRUE(json["ok"]);
  EXPECT_EQ(json["checks"].size(), 3u);

  server.set_tamper([](v1::AttendResponse& response) {
    if (response.report().kernel() != v1::KERNEL_FLASH) return;
    float first = 0;
    std::memcpy(&first, response.out_data().data(), 4);
    first += 1e-5f;
    std::memcpy(response.mutable_out_data()->data(), &first, 4);
  });
  const Outcome bad = Tool(flags, server.address());
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.text, AllOf(HasSubstr("FAILED"), HasSubstr("1.0e-05")));
}

TEST(Tool, ChecksARealModelsTensors) {
  TestServer server;
  const Outcome outcome =
      Tool("check --json tests/data/minilm/layer0.safetensors tests/data/minilm/layer5.safetensors",
           server.address());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["checks"].size(), 6u);
  EXPECT_LT(json["checks"][0]["model_error"]["max"], 5e-6);
}

TEST(Tool, ExplainsWithAndWithoutAServer) {
  TestServer server;
  const Outcome outcome =
      Tool("explain --json --length 40 --row 20 --chunk 10 --causal bottom-right", server.address());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["chunks"].size(), 4u);
  EXPECT_EQ(json["chunks"][2]["visible"], 1);
  EXPECT_TRUE(json["server"]["ok"]);
  const std::string plain = std::string("env -u ATTEND_ADDRESS ") + ATTEND_TOOL + " explain >/dev/null";
  EXPECT_EQ(std::system(plain.c_str()), 0);
  EXPECT_EQ(Tool("explain --row 64", server.address()).code, 1);
}

TEST(Tool, PrintsViolations) {
  TestServer server;
  const Outcome outcome = Tool("check --length 4 --q-lengths 1,2,3", server.address());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("q_lengths"));
}

TEST(Tool, ClimbsTheLadder) {
  TestServer server;
  const Outcome outcome =
      Tool("bench ladder --json --lengths 8,16 --heads 2 --batch 1 --seconds-each 0 --head-dim 8",
           server.address());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json.size(), 2u);  // as asked, and small
  EXPECT_EQ(json[0]["steps"].size(), 6u);
  EXPECT_EQ(json[1]["heads"], 1);
}

TEST(Tool, PutsLoadOn) {
  TestServer server;
  const std::string sizes = " --json --length 8 --heads 1 --head-dim 8 --duration-s 0.3";
  // Callers that wait for their answers might send nothing after a warm-up, where the first took long.
  for (const std::string arrivals : {"--concurrency 3 --warmup-s 0", "--rate 200 --warmup-s 0.05"}) {
    const Outcome outcome = Tool("bench load " + arrivals + sizes, server.address());
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    const auto json = nlohmann::json::parse(outcome.out);
    EXPECT_GT(json["succeeded"], 0);
    EXPECT_TRUE(json["errors"].empty()) << outcome.text;
    EXPECT_LE(json["latency_s"]["p50"], json["latency_s"]["p99"]);
  }
}

TEST(Tool, SaysWhyCallsOfALoadFailed) {
  TestServer server;
  server.FailNext({{{grpc::StatusCode::INTERNAL, "broken"}, ""}});
  const Outcome outcome =
      Tool("bench load --length 8 --heads 1 --head-dim 8 --duration-s 0.2 --warmup-s 0", server.address());
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("1 calls ended with INTERNAL"), HasSubstr("the first: INTERNAL: broken")));
}

// A server that stands still for a while makes every call that was due then late, sent or not.
TEST(Tool, LatencyCountsFromTheIntendedSend) {
  TestServer server;
  std::thread pause([&server] {
    const absl::Time limit = absl::Now() + absl::Seconds(60);
    while (server.calls().size() < 20 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
    server.Hold(true);
    absl::SleepFor(absl::Milliseconds(400));
    server.Hold(false);
  });
  const Outcome outcome = Tool(
      "bench load --rate 200 --in-flight-max 4096 --json --length 8 --heads 1 --head-dim 8 --duration-s 0.6 "
      "--warmup-s 0",
      server.address());
  pause.join();
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  // About two thirds of the calls were due while it stood still.
  EXPECT_GT(nlohmann::json::parse(outcome.out)["latency_s"]["p90"], 0.1);
}

TEST(Tool, TellsOfTheServerAndItsHealth) {
  TestServer server;
  EXPECT_THAT(Tool("info", server.address()).text, AllOf(HasSubstr("1.2.3"), HasSubstr("reference")));
  EXPECT_EQ(nlohmann::json::parse(Tool("info --json", server.address()).out)["devices"][0]["kind"], "cpu");
  EXPECT_EQ(Tool("health", server.address()).code, 0);
  EXPECT_EQ(Tool("--address " + server.address() + " health").code, 0);
  server.SetServing(false);
  EXPECT_EQ(Tool("health --service attend.v1.AttentionService", server.address()).code, 1);
  EXPECT_EQ(Tool("health --wait-s 0.2", server.address()).code, 1);
}

TEST(Tool, RunsTheDemo) {
  TestServer server;
  // The reference is slow: the demo's parts have tests of their own, this one is of their order.
  server.FailNext({{{grpc::StatusCode::INTERNAL, "broken"}, ""}});
  const Outcome outcome = Tool("demo --data tests/data/minilm", server.address());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("[4,8,256,64]"), HasSubstr("broken")));
}

TEST(Tool, MeasuresTheServiceEndToEndByRow) {
  TestServer server;
  const Outcome outcome =
      Tool("bench --service --json --row 1,2,8,8,1 --row 2,1,4,16,3 --row-seconds 1", server.address());
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["batch"], 2);
  EXPECT_EQ(json["rows"][1]["concurrency"], 3);
  EXPECT_EQ(json["rows"][1]["request_bytes"], 3 * 2 * 4 * 16 * 2);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["succeeded"], 0);
    EXPECT_TRUE(row["errors"].empty());
  }
}

TEST(Tool, BenchSaysWhatIsWorseThanAFormerRun) {
  TestServer server;
  const std::string flags = "bench --service --row 1,1,4,8,1 --row-seconds 1";
  const std::string file = Scratch("former.json");
  // Calls a second no server reaches, and a time that none exceeds.
  const char* const former =
      R"({"rows": [{"batch": 1, "heads": 1, "length": 4, "head_dim": 8, "concurrency": 1,
                    "calls_per_s": %s, "latency_s": {"p50": 1000}}]})";
  char text[400];
  std::snprintf(text, sizeof text, former, "1e12");
  std::ofstream(file) << text;
  const Outcome worse = Tool(flags + " --compare " + file, server.address());
  EXPECT_EQ(worse.code, 1) << worse.text;
  EXPECT_THAT(worse.text, AllOf(HasSubstr("[1,1,4,8] x 1: calls/s"), HasSubstr("WORSE"), HasSubstr("ok")));
  std::snprintf(text, sizeof text, former, "1e-12");
  std::ofstream(file) << text;
  const Outcome better = Tool(flags + " --compare " + file, server.address());
  EXPECT_EQ(better.code, 0) << better.text;
  // Another row, and no JSON at all.
  EXPECT_EQ(Tool("bench --service --row 1,1,4,16,1 --row-seconds 1 --compare " + file, server.address()).code,
            1);
  std::ofstream(file) << "calls";
  EXPECT_EQ(Tool(flags + " --compare " + file, server.address()).code, 1);
}

TEST(Compare, MatchesFiguresOfEachBenchAndHoldsTheTolerance) {
  using Json = nlohmann::ordered_json;
  const auto ladder = [](double seconds) {
    return Json::array({{{"batch", 4},
                         {"heads", 8},
                         {"head_dim", 64},
                         {"dtype", "fp16"},
                         {"steps",
                          {{{"length", 64}, {"kernel", "flash"}, {"kernel_s", seconds}},
                           {{"length", 128}, {"kernel", "naive"}, {"refused", "too large"}}}}}});
  };
  const auto slower = cli::CompareRuns(ladder(1.0), ladder(1.2), 0.1);
  ASSERT_TRUE(slower.ok()) << slower.status();
  ASSERT_EQ(slower->size(), 1u);
  EXPECT_EQ(slower->at(0).figure, "[4,8,64,64] fp16 flash: kernel time");
  EXPECT_DOUBLE_EQ(slower->at(0).ratio, 1.0 / 1.2);
  EXPECT_TRUE(cli::AnyWorse(*slower));
  EXPECT_FALSE(cli::AnyWorse(*cli::CompareRuns(ladder(1.0), ladder(1.2), 0.2)));
  EXPECT_FALSE(cli::AnyWorse(*cli::CompareRuns(ladder(1.0), ladder(0.5), 0.0)));

  const auto load = [](int callers, double calls_per_s) {
    return Json{{"request_bytes", 100},
                {"concurrency", callers},
                {"rate", 0},
                {"calls_per_s", calls_per_s},
                {"latency_s", {{"p50", 1.0}}}};
  };
  const auto fewer = cli::CompareRuns(load(2, 100), load(2, 80), 0.1);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_TRUE(fewer->at(0).worse);   // calls/s
  EXPECT_FALSE(fewer->at(1).worse);  // p50
  EXPECT_FALSE(cli::CompareRuns(load(2, 100), load(3, 100), 0.1).ok());
  EXPECT_FALSE(cli::CompareRuns(load(2, 100), ladder(1.0), 0.1).ok());
}

}  // namespace
}  // namespace attend
