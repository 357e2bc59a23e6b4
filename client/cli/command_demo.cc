// attend demo: the two experiments of the lecture on flash attention, and the check on a real model's
// tensors.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/accuracy.h"
#include "client/cli/commands.h"
#include "client/cli/ladder.h"

namespace attend::cli {
namespace {

struct DemoFlags {
  std::string data;
  bool longer = false;
  bool quick = false;
};

// Prints text as it comes; gathers JSON.
struct Sink {
  const bool json;
  nlohmann::ordered_json& all;
  void Say(const std::string& text) const {
    if (json) return;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
};

absl::Status CheckLecture(Client& client, Sink& sink, bool& ok) {
  const Inputs inputs = RandomInputs({4, 8, 256, 64}, DataType::kFp32, 1);
  sink.Say("The numerical check: unit-normal q, k, v [4,8,256,64] in fp32 against float64");
  const auto results = CheckKernels(client, inputs.request, "[4,8,256,64]", nullptr, /*unit_normal=*/true);
  if (!results.ok()) return results.status();
  ok = ok && AllOk(*results);
  sink.all["check"] = ToJson(*results);
  sink.Say(ToText(*results));
  return absl::OkStatus();
}

absl::Status ClimbLadders(Client& client, const DemoFlags& flags, Sink& sink) {
  const absl::StatusOr<ServerInfo> info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  const bool gpu =
      std::any_of(info->devices.begin(), info->devices.end(), [](const auto& d) { return d.kind == "cuda"; });
  LadderOptions options;
  if (flags.longer) options.lengths.push_back(8192);
  if (flags.quick) options.lengths = {64, 128, 256};
  options.dtype = gpu ? DataType::kFp16 : DataType::kFp32;
  // A CPU takes seconds for what a GPU does in a millisecond: fewer sequences, fewer repeats.
  options.sizes = {gpu ? 4 : 1, 8, 0, 64};
  options.seconds_each = flags.quick ? 0 : gpu ? 0.3 : 0.2;
  for (const bool small : {false, true}) {
    if (small) options.sizes = {1, 1, 0, 64};
    sink.Say(absl::StrCat(small ? "The ladder at small batch and heads" : "The ladder", ": batch ",
                          options.sizes.batch, ", heads ", options.sizes.heads, ", head_dim 64, ",
                          Name(options.dtype), ", kernel time as the server reports it"));
    const auto steps = RunLadder(client, options);
    if (!steps.ok()) return steps.status();
    sink.all[small ? "ladder_small" : "ladder"] = ToJson(*steps);
    sink.Say(ToText(*steps));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(Client& client, const DemoFlags& flags, Sink& sink, bool& ok) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(flags.data)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) return absl::NotFoundError(absl::StrCat(flags.data, ": holds no .safetensors file"));
  sink.Say("A real model: every layer's q, k, v, against float64 and the model's own output");
  std::vector<KernelAccuracy> all;
  for (const std::string& path : paths) {
    absl::StatusOr<Inputs> inputs = ReadInputs(path);
    if (!inputs.ok()) return inputs.status();
    const auto results = CheckKernels(client, inputs->request, std::filesystem::path(path).stem().string(),
                                      inputs->file->Find("out"), /*unit_normal=*/false);
    if (!results.ok()) return results.status();
    all.insert(all.end(), results->begin(), results->end());
  }
  ok = ok && AllOk(all);
  sink.all["model"] = ToJson(all);
  sink.Say(ToText(all));
  return absl::OkStatus();
}

int Demo(const DemoFlags& flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  nlohmann::ordered_json all;
  Sink sink = {context.json, all};
  bool ok = true;
  absl::Status status = CheckLecture(**client, sink, ok);
  if (status.ok()) status = ClimbLadders(**client, flags, sink);
  if (status.ok() && !flags.data.empty()) status = CheckModel(**client, flags, sink, ok);
  if (!status.ok()) return Fail(status);
  sink.all["ok"] = ok;
  if (sink.json) std::printf("%s\n", sink.all.dump(2).c_str());
  sink.Say(ok ? "All answers are right." : "Some answers are WRONG.");
  return ok ? kExitOk : kExitError;
}

}  // namespace

void AddDemo(CLI::App& app, Context& context) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App& command = *app.add_subcommand("demo", "Check, ladder, and the check on a real model's tensors");
  command
      .add_option("--data", flags->data, "Folder of safetensors files with q, k, v and the model's own out")
      ->check(CLI::ExistingDirectory);
  CLI::Option* longer = command.add_flag("--long", flags->longer, "Climb the ladder up to length 8192");
  command.add_flag("--quick", flags->quick, "Climb it up to length 256 only")->excludes(longer);
  command.callback([flags, &context] { context.exit_code = Demo(*flags, context); });
}

}  // namespace attend::cli
