// The server without the wire: callers submit from its own (pinned) memory, so that what is measured is
// scheduling, copies and kernels. One or more servers' options are measured in turn, in one run.
//
//   runtime_bench --callers 8 --shape 1,32,4096,128 -- --device=cuda
//   runtime_bench --callers 16 -- --device=cuda --devices=0 -- --device=cuda --devices=all
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/process/options.h"
#include "tests/bench/service/figures.h"
#include "tests/bench/service/runtime_load.h"

namespace attend::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::vector<int64_t> shape = {1, 32, 4096, 128};
  int callers = 8, rounds = 5;
  double seconds = 1;
  std::string json;
};

// One server's options, and what its rounds measured.
struct Side {
  std::string options;
  std::unique_ptr<Runtime> runtime;
  std::vector<RuntimeResult> rounds = {};
};

template <typename Figure>
std::vector<double> OfRounds(const Side& side, Figure figure) {
  std::vector<double> values;
  for (const RuntimeResult& round : side.rounds) values.push_back(figure(round));
  return values;
}

template <typename Figure>
double MedianOf(const Side& side, Figure figure) {
  return Summary(OfRounds(side, figure)).median;
}

double CallsPerSecond(const RuntimeResult& r) { return r.calls_per_second(); }

Call MakeCall(const std::vector<int64_t>& shape) {
  Call call;
  call.dtype = DataType::kFp16;
  call.causal = Causal::kBottomRight;
  call.batch = shape[0];
  call.q_heads = call.kv_heads = static_cast<int32_t>(shape[1]);
  call.q_len = call.kv_len = shape[2];
  call.head_dim = call.v_head_dim = static_cast<int32_t>(shape[3]);
  return call;
}

Json Report(const Side& side, const Call& call) {
  using R = RuntimeResult;
  const double per_s = MedianOf(side, CallsPerSecond);
  const double in = static_cast<double>(call.q_bytes() + call.k_bytes() + call.v_bytes());
  const double out = static_cast<double>(call.out_bytes());
  Json json = {{"options", side.options},
               {"devices", side.runtime->devices()},
               {"calls_per_s", per_s},
               {"in_bytes_per_s", per_s * in},
               {"out_bytes_per_s", per_s * out},
               {"p50_s", MedianOf(side, [](const R& r) { return Percentile(r.latency, 0.5); })},
               {"p99_s", MedianOf(side, [](const R& r) { return Percentile(r.latency, 0.99); })},
               {"queue_s", MedianOf(side, [](const R& r) { return r.queue_s; })},
               {"copy_in_s", MedianOf(side, [](const R& r) { return r.copy_in_s; })},
               {"kernel_s", MedianOf(side, [](const R& r) { return r.kernel_s; })},
               {"copy_out_s", MedianOf(side, [](const R& r) { return r.copy_out_s; })},
               {"batch_requests", MedianOf(side, [](const R& r) { return r.batch_requests; })}};
  json["rounds"] = OfRounds(side, CallsPerSecond);
  const auto ms = [&](const char* key) { return json[key].get<double>() * 1e3; };
  std::printf("%10.1f %7.1f %7.1f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %6.1f  %s\n", per_s, per_s * in * 1e-9,
              per_s * out * 1e-9, ms("p50_s"), ms("p99_s"), ms("queue_s"), ms("copy_in_s"), ms("kernel_s"),
              ms("copy_out_s"), json["batch_requests"].get<double>(), side.options.c_str());
  return json;
}

int Run(const Flags& flags, const std::vector<std::vector<std::string>>& servers) {
  const Call call = MakeCall(flags.shape);
  std::vector<Side> sides;
  for (const std::vector<std::string>& arguments : servers) {
    std::vector<const char*> argv = {"runtime_bench"};
    std::string text;
    for (const std::string& argument : arguments) {
      argv.push_back(argument.c_str());
      text += (text.empty() ? "" : " ") + argument;
    }
    const server::ParsedOptions parsed = server::ParseOptions(static_cast<int>(argv.size()), argv.data());
    if (parsed.exit_code >= 0) return parsed.exit_code;
    auto runtime = Runtime::Open(parsed.options, call, flags.callers);
    if (!runtime.ok()) {
      std::fprintf(stderr, "%s: %s\n", text.c_str(), runtime.status().ToString().c_str());
      return 1;
    }
    sides.push_back({text, *std::move(runtime)});
  }
  for (int round = -1; round < flags.rounds; ++round) {  // the first warms up
    for (Side& side : sides) {
      auto result = side.runtime->Run(round < 0 ? flags.seconds / 4 : flags.seconds);
      if (!result.ok()) {
        std::fprintf(stderr, "%s: %s\n", side.options.c_str(), result.status().ToString().c_str());
        return 1;
      }
      if (round >= 0) side.rounds.push_back(*std::move(result));
    }
  }
  std::printf("%10s %7s %7s %9s %9s %9s %9s %9s %9s %6s\n", "calls/s", "GB/s in", "out", "p50 ms", "p99 ms",
              "queue ms", "copy in", "kernel", "copy out", "batch");
  Json json = {{"shape", flags.shape}, {"callers", flags.callers}, {"seconds", flags.seconds}};
  for (const Side& side : sides) json["servers"].push_back(Report(side, call));
  for (size_t i = 1; i < sides.size(); ++i) {
    const double ratio = Ratio(OfRounds(sides[i], CallsPerSecond), OfRounds(sides[0], CallsPerSecond)).median;
    json["servers"][i]["by_first"] = ratio;
    std::printf("%s: %.2f of the first\n", sides[i].options.c_str(), ratio);
  }
  if (!flags.json.empty()) std::ofstream(flags.json) << json.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace attend::bench

int main(int argc, char** argv) {
  // Each "--" begins the options of one server.
  std::vector<std::vector<std::string>> groups(1);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--") {
      groups.emplace_back();
    } else {
      groups.back().emplace_back(argv[i]);
    }
  }
  std::vector<std::string> own(groups[0].rbegin(), groups[0].rend());  // CLI11 takes them last first
  groups.erase(groups.begin());
  attend::bench::Flags flags;
  CLI::App app("Measures attend-server without the wire: runtime_bench [FLAGS] -- SERVER_FLAGS [-- ...]",
               "runtime_bench");
  app.add_option("--shape", flags.shape, "batch,heads,length,head_dim of q, k and v")
      ->delimiter(',')
      ->expected(4)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--callers", flags.callers, "Callers")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Rounds")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Seconds of a round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", flags.json, "File that gets the figures");
  try {
    app.parse(own);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (groups.empty()) groups.emplace_back();
  return attend::bench::Run(flags, groups);
}
