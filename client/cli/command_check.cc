// attend check: the numerical check, every kernel against float64.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/accuracy.h"
#include "client/cli/commands.h"
#include "client/cli/inputs.h"

namespace attend::cli {
namespace {

struct CheckFlags {
  RandomFlags random;
  AttentionFlags attention;
  std::vector<std::string> files;
};

absl::StatusOr<std::vector<KernelAccuracy>> Check(Client& client, const CheckFlags& flags) {
  if (flags.files.empty()) {
    Inputs inputs = flags.random.Make();
    flags.attention.Apply(inputs.request);
    return CheckKernels(client, inputs.request,
                        absl::StrCat("q,k,v ", ToString(inputs.request.q.shape), " ", flags.random.dtype),
                        nullptr, /*unit_normal=*/true);
  }
  std::vector<KernelAccuracy> results;
  for (const std::string& path : flags.files) {
    absl::StatusOr<Inputs> inputs = ReadInputs(path);
    if (!inputs.ok()) return inputs.status();
    flags.attention.Apply(inputs->request);
    const auto checked =
        CheckKernels(client, inputs->request, path, inputs->file->Find("out"), /*unit_normal=*/false);
    if (!checked.ok()) return checked.status();
    results.insert(results.end(), checked->begin(), checked->end());
  }
  return results;
}

int RunCheck(const CheckFlags& flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  const auto results = Check(**client, flags);
  if (!results.ok()) return Fail(results.status());
  if (context.json) {
    const nlohmann::ordered_json json = {{"ok", AllOk(*results)}, {"checks", ToJson(*results)}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::fputs(ToText(*results).c_str(), stdout);
  }
  return AllOk(*results) ? kExitOk : kExitError;
}

}  // namespace

void AddCheck(CLI::App& app, Context& context) {
  auto flags = std::make_shared<CheckFlags>();
  flags->random.sizes = {4, 8, 256, 64};
  CLI::App& command = *app.add_subcommand(
      "check", "Check NAIVE, ONLINE and FLASH against float64 computed here; exit code 1 if off");
  command.footer(
      "With FILE, checks the tensors in it (q, k, v, ...); an out in the file, such as a model's own, is\n"
      "compared as well. Without, q, k and v are unit-normal random numbers.\n"
      "Example: attend check --causal bottom-right --dtype bf16");
  command.add_option("FILE", flags->files, "Safetensors files to check")->check(CLI::ExistingFile);
  AddRandomFlags(command, flags->random);
  AddAttentionFlags(command, flags->attention);
  command.remove_option(command.get_option("--kernel"));  // all are run
  command.callback([flags, &context] { context.exit_code = RunCheck(*flags, context); });
}

}  // namespace attend::cli
