// attend bench ladder, attend bench load and attend bench --service.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/compare.h"
#include "client/cli/files.h"
#include "client/cli/ladder.h"
#include "client/cli/load.h"
#include "client/cli/service.h"

namespace attend::cli {
namespace {

// What every benchmark is held against, where the user says so.
struct CompareFlags {
  std::string file;
  double tolerance = 0.1;
};

struct BenchFlags {
  CompareFlags compare;
  bool service = false;
  std::vector<std::string> rows;
  ServiceOptions options;
};

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

// Prints the run, as JSON or as text, and how it compares; the exit code. The comparison goes to standard
// error beside JSON.
int Finish(const nlohmann::ordered_json& run, const std::string& text, const CompareFlags& compare,
           const Context& context) {
  std::fputs((context.json ? run.dump(2) + "\n" : text).c_str(), stdout);
  if (compare.file.empty()) return kExitOk;
  const absl::StatusOr<std::string> former = ReadFile(compare.file);
  if (!former.ok()) return FailHere(former.status());
  const auto before = nlohmann::ordered_json::parse(*former, nullptr, /*allow_exceptions=*/false);
  const auto changes = CompareRuns(before, run, compare.tolerance);
  if (!changes.ok()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(compare.file, ": ", std::string(changes.status().message()))));
  }
  std::fputs(ToText(*changes).c_str(), context.json ? stderr : stdout);
  return AnyWorse(*changes) ? kExitError : kExitOk;
}

int Service(BenchFlags flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  if (!flags.rows.empty()) flags.options.rows.clear();
  for (const std::string& text : flags.rows) flags.options.rows.push_back(*ParseServiceRow(text));
  const auto steps = RunService(**client, flags.options);
  if (!steps.ok()) return Fail(steps.status());
  return Finish(ToJson(*steps, flags.options), ToText(*steps), flags.compare, context);
}

int Ladder(LadderFlags flags, const CompareFlags& compare, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  AttentionFlags attention;
  attention.causal = flags.causal;
  Request request;
  attention.Apply(request);
  flags.options.causal = request.causal;
  flags.options.dtype = ParseDataType(flags.random.dtype);
  auto json = nlohmann::ordered_json::array();
  std::string text;
  const bool given_is_small = flags.random.sizes.batch == 1 && flags.random.sizes.heads == 1;
  for (const bool small : {false, true}) {
    if (small && (!flags.small || given_is_small)) continue;
    flags.options.sizes = flags.random.sizes;
    if (small) flags.options.sizes.batch = flags.options.sizes.heads = flags.options.sizes.kv_heads = 1;
    const Sizes& sizes = flags.options.sizes;
    const auto steps = RunLadder(**client, flags.options);
    if (!steps.ok()) return Fail(steps.status());
    json.push_back({{"batch", sizes.batch},
                    {"heads", sizes.heads},
                    {"head_dim", sizes.head_dim},
                    {"dtype", flags.random.dtype},
                    {"steps", ToJson(*steps)}});
    absl::StrAppend(&text, "batch ", sizes.batch, ", heads ", sizes.heads, ", head_dim ", sizes.head_dim,
                    ", ", flags.random.dtype, "\n", ToText(*steps), "\n");
  }
  return Finish(json, text, compare, context);
}

int Load(const LoadFlags& flags, const CompareFlags& compare, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  Inputs inputs = flags.random.Make();
  flags.attention.Apply(inputs.request);
  const LoadResult result = RunLoad(**client, inputs.request, flags.options);
  const int code = Finish(ToJson(result, flags.options), ToText(result), compare, context);
  return result.latency_s.empty() ? kExitError : code;
}

void AddLadder(CLI::App& bench, const std::shared_ptr<BenchFlags>& common, Context& context) {
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
      ->check(Between(0, kSecondsMax))
      ->capture_default_str();
  command.add_flag("!--no-small", flags->small, "Leave out the second ladder");
  command.callback(
      [flags, common, &context] { context.exit_code = Ladder(*flags, common->compare, context); });
}

void AddLoad(CLI::App& bench, const std::shared_ptr<BenchFlags>& common, Context& context) {
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
      ->check(Between(1e-6, 1e6))
      ->excludes(concurrency);
  command.add_option("--duration-s", flags->options.duration_s, "Seconds of load that count")
      ->check(Between(1e-6, kSecondsMax))
      ->capture_default_str();
  command.add_option("--warmup-s", flags->options.warmup_s, "Seconds before that")
      ->check(Between(0, kSecondsMax))
      ->capture_default_str();
  command.add_option("--in-flight-max", flags->options.in_flight_max, "With --rate: most calls in flight")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddRandomFlags(command, flags->random);
  AddAttentionFlags(command, flags->attention);
  command.callback([flags, common, &context] { context.exit_code = Load(*flags, common->compare, context); });
}

}  // namespace

void AddBench(CLI::App& app, Context& context) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App& command = *app.add_subcommand("bench", "Measure the server");
  command.footer(
      "With --compare, the figures are held against those of a former run with --json: exit code 1\n"
      "where one is worse by more than --tolerance.\n"
      "Example: attend bench --service --json > before.json; attend bench --service --compare before.json");
  command.require_subcommand(0, 1);
  command.fallthrough();
  CLI::Option* service =
      command.add_flag("--service", flags->service,
                       "End to end: calls/s and latency by shape and number of callers, fp16, causal");
  command
      .add_option("--row", flags->rows,
                  "With --service: batch,heads,length,head_dim,callers; may be repeated")
      ->check([](const std::string& text) { return std::string(ParseServiceRow(text).status().message()); });
  command.add_option("--row-seconds", flags->options.seconds_each, "With --service: seconds of each row")
      ->check(Between(1e-6, kSecondsMax))
      ->capture_default_str();
  command.add_option("--compare", flags->compare.file, "Former run, as --json printed it")
      ->check(CLI::ExistingFile);
  command
      .add_option("--tolerance", flags->compare.tolerance, "With --compare: what a figure may be worse by")
      ->check(Between(0, 1))
      ->capture_default_str();
  AddLadder(command, flags, context);
  AddLoad(command, flags, context);
  for (CLI::App* other : command.get_subcommands({})) other->excludes(service);
  command.callback([flags, &command, &context] {
    if (flags->service) {
      context.exit_code = Service(*flags, context);
    } else if (command.get_subcommands().empty()) {
      throw CLI::RequiredError("One of --service, ladder and load");
    }
  });
}

}  // namespace attend::cli
