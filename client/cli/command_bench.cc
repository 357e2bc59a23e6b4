// attend bench ladder and attend bench load.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/ladder.h"
#include "client/cli/load.h"

namespace attend::cli {
namespace {

struct LadderFlags {
  RandomFlags random;
  LadderOptions options;
  std::string causal = "none";
  bool small = true;
};

struct LoadFlags {
  RandomFlags random;
  AttentionFlags attention;
  LoadOptions options;
};

int Ladder(LadderFlags flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  AttentionFlags attention;
  attention.causal = flags.causal;
  Request request;
  attention.Apply(request);
  flags.options.causal = request.causal;
  flags.options.dtype = ParseDataType(flags.random.dtype);
  auto json = nlohmann::ordered_json::array();
  const bool given_is_small = flags.random.sizes.batch == 1 && flags.random.sizes.heads == 1;
  for (const bool small : {false, true}) {
    if (small && (!flags.small || given_is_small)) continue;
    flags.options.sizes = flags.random.sizes;
    if (small) flags.options.sizes.batch = flags.options.sizes.heads = flags.options.sizes.kv_heads = 1;
    const Sizes& sizes = flags.options.sizes;
    if (!context.json) {
      std::printf("batch %ld, heads %ld, head_dim %ld, %s\n", static_cast<long>(sizes.batch),
                  static_cast<long>(sizes.heads), static_cast<long>(sizes.head_dim),
                  flags.random.dtype.c_str());
    }
    const auto steps = RunLadder(**client, flags.options);
    if (!steps.ok()) return Fail(steps.status());
    if (context.json) {
      json.push_back({{"batch", sizes.batch},
                      {"heads", sizes.heads},
                      {"head_dim", sizes.head_dim},
                      {"dtype", flags.random.dtype},
                      {"steps", ToJson(*steps)}});
    } else {
      std::printf("%s\n", ToText(*steps).c_str());
    }
  }
  if (context.json) std::printf("%s\n", json.dump(2).c_str());
  return kExitOk;
}

int Load(const LoadFlags& flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  Inputs inputs = flags.random.Make();
  flags.attention.Apply(inputs.request);
  const LoadResult result = RunLoad(**client, inputs.request, flags.options);
  if (context.json) {
    std::printf("%s\n", ToJson(result, flags.options).dump(2).c_str());
  } else {
    std::fputs(ToText(result).c_str(), stdout);
  }
  return result.latency_s.empty() ? kExitError : kExitOk;
}

void AddLadder(CLI::App& bench, Context& context) {
  auto flags = std::make_shared<LadderFlags>();
  flags->random.sizes = {4, 8, 0, 64};
  CLI::App& command = *bench.add_subcommand(
      "ladder", "Time NAIVE, ONLINE and FLASH over growing lengths: kernel time, speed-up, bytes moved");
  command.footer(
      "Times and bytes are the server's own reports; medians of as many calls as fit in --seconds-each.\n"
      "A second ladder with batch 1 and one head shows where the order turns around.\n"
      "Example: attend bench ladder --lengths 1024,2048,4096,8192 --dtype fp16");
  AddRandomFlags(command, flags->random);
  command.remove_option(command.get_option("--length"));
  command.add_option("--lengths", flags->options.lengths, "Lengths to run")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--causal", flags->causal, "Causal mask")
      ->check(CLI::IsMember({"none", "bottom-right", "top-left"}))
      ->capture_default_str();
  command.add_option("--repeats-max", flags->options.repeats_max, "Most calls per kernel and length")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seconds-each", flags->options.seconds_each, "Seconds per kernel and length")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("!--no-small", flags->small, "Leave out the second ladder");
  command.callback([flags, &context] { context.exit_code = Ladder(*flags, context); });
}

void AddLoad(CLI::App& bench, Context& context) {
  auto flags = std::make_shared<LoadFlags>();
  flags->random.sizes = {1, 8, 128, 64};
  CLI::App& command =
      *bench.add_subcommand("load", "Put load on the server: latency percentiles and throughput");
  command.footer(
      "With --rate, calls arrive at random (Poisson) whatever the server does; else --concurrency callers\n"
      "each wait for their answer. Latency counts from the intended time of sending.\n"
      "Example: attend bench load --rate 500 --duration-s 30 --length 256");
  auto* concurrency = command.add_option("--concurrency", flags->options.concurrency, "Callers")
                          ->check(CLI::PositiveNumber)
                          ->capture_default_str();
  command.add_option("--rate", flags->options.rate, "Calls a second")
      ->check(CLI::PositiveNumber)
      ->excludes(concurrency);
  command.add_option("--duration-s", flags->options.duration_s, "Seconds of load that count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--warmup-s", flags->options.warmup_s, "Seconds before that")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--in-flight-max", flags->options.in_flight_max, "With --rate: most calls in flight")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddRandomFlags(command, flags->random);
  AddAttentionFlags(command, flags->attention);
  command.callback([flags, &context] { context.exit_code = Load(*flags, context); });
}

}  // namespace

void AddBench(CLI::App& app, Context& context) {
  CLI::App& command = *app.add_subcommand("bench", "Measure the server");
  command.require_subcommand(1);
  AddLadder(command, context);
  AddLoad(command, context);
}

}  // namespace attend::cli
