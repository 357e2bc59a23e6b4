// attend run: tensors from a file to the server, results to a file.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/inputs.h"
#include "client/cli/report.h"
#include "client/cli/safetensors.h"

namespace attend::cli {
namespace {

struct RunFlags {
  std::string input, output;
  AttentionFlags attention;
  std::string request_id;
};

int Run(const RunFlags& flags, const Context& context) {
  absl::StatusOr<Inputs> inputs = ReadInputs(flags.input);
  if (!inputs.ok()) return FailHere(inputs.status());
  // Before a long call rather than after it.
  const absl::Status creatable = CheckCreatable(flags.output);
  if (!creatable.ok()) return FailHere(creatable);
  flags.attention.Apply(inputs->request);
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  CallOptions options;
  options.request_id = flags.request_id;
  const absl::StatusOr<Response> response = (*client)->Attend(inputs->request, options);
  if (!response.ok()) return Fail(response.status());

  std::vector<std::pair<std::string, TensorView>> results = {{"out", response->out.view()}};
  if (response->lse) results.push_back({"lse", response->lse->view()});
  if (response->weights) results.push_back({"weights", response->weights->view()});
  const absl::Status status = WriteSafetensors(
      flags.output, results,
      {{"kernel", std::string(Name(response->report.kernel))}, {"device", response->report.device}});
  if (!status.ok()) return FailHere(status);

  nlohmann::ordered_json shapes;
  for (const auto& [name, view] : results) shapes[name] = view.shape;
  if (context.json) {
    const nlohmann::ordered_json json = {{"output", flags.output},
                                         {"tensors", shapes},
                                         {"request_id", response->request_id},
                                         {"attempts", response->attempts},
                                         {"report", ToJson(response->report)}};
    std::printf("%s\n", json.dump(2).c_str());
    return kExitOk;
  }
  std::string line = absl::StrCat(flags.output, ":");
  for (const auto& [name, view] : results) {
    absl::StrAppend(&line, " ", name, " ", Name(view.dtype), " ", ToString(view.shape));
  }
  std::printf("%s\n%s", line.c_str(), ToText(response->report).c_str());
  return kExitOk;
}

}  // namespace

void AddRun(CLI::App& app, Context& context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App& command = *app.add_subcommand("run", "Compute attention over the tensors of a safetensors file");
  command.footer(
      "INPUT holds the tensors q, k and v, and may hold bias, mask, alibi_slopes and sinks.\n"
      "OUTPUT gets out and, as asked for, lse and weights.\n"
      "Example: attend run qkv.safetensors out.safetensors --causal bottom-right --lse");
  command.add_option("INPUT", flags->input, "Safetensors file to read")->required()->type_name("FILE");
  command.add_option("OUTPUT", flags->output, "Safetensors file to write")->required()->type_name("FILE");
  AddAttentionFlags(command, flags->attention);
  command.add_option("--request-id", flags->request_id, "Id to find the call by in the server's log");
  command.callback([flags, &context] { context.exit_code = Run(*flags, context); });
}

}  // namespace attend::cli
