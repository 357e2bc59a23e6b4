// attend explain: one query row, step by step.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/inputs.h"
#include "client/cli/numbers.h"
#include "client/cli/reference.h"
#include "client/cli/walk.h"

namespace attend::cli {
namespace {

struct ExplainFlags {
  RandomFlags random;
  AttentionFlags attention;
  std::string file;
  int64_t sequence = 0, head = 0;
  std::optional<int64_t> row;
  int64_t chunk = 16;
  size_t columns = 4;
};

struct ServerRow {
  std::string kernel, device;
  double out_error = 0, lse_error = 0, tolerance = 0;
  bool ok() const { return out_error <= tolerance && lse_error <= tolerance; }
};

// The server's answer to the whole request, against the walk of one row.
absl::StatusOr<ServerRow> Ask(Client& client, Request request, const Problem64& problem, const Walk& walk,
                              int64_t b, int64_t h, int64_t i) {
  request.return_lse = true;
  const absl::StatusOr<Response> response = client.Attend(request);
  if (!response.ok()) return response.status();
  ServerRow row;
  row.kernel = std::string(Name(response->report.kernel));
  row.device = response->report.device;
  const TensorView out = response->out.view();
  const int64_t first = problem.QRow(b, h, i, problem.v_head_dim);
  double largest = 1;
  for (size_t d = 0; d < walk.out.size(); ++d) {
    const double got = ToDouble(out.dtype, out.data, first + static_cast<int64_t>(d));
    row.out_error = std::max(row.out_error, std::fabs(got - walk.out[d]));
  }
  for (const double v : problem.v) largest = std::max(largest, std::fabs(v));
  const double lse = ToDouble(DataType::kFp32, response->lse->view().data, problem.Lse(b, h, i));
  row.lse_error = lse == walk.lse ? 0 : std::fabs(lse - walk.lse);
  row.tolerance = largest * (out.dtype == DataType::kFp32 ? 4e-6 : Epsilon(out.dtype));
  return row;
}

int Explain(const ExplainFlags& flags, const Context& context) {
  Inputs inputs;
  if (flags.file.empty()) {
    inputs = flags.random.Make();
  } else {
    absl::StatusOr<Inputs> read = ReadInputs(flags.file);
    if (!read.ok()) return FailHere(read.status());
    inputs = *std::move(read);
  }
  flags.attention.Apply(inputs.request);
  const absl::StatusOr<Problem64> problem = MakeProblem64(inputs.request);
  if (!problem.ok()) return Fail(problem.status());
  const bool sequence_exists = flags.sequence >= 0 && flags.sequence < problem->batch;
  const int64_t row = flags.row.value_or(sequence_exists ? problem->q_lengths[flags.sequence] - 1 : 0);
  const absl::StatusOr<Walk> walk = WalkRow(inputs.request, flags.sequence, flags.head, row, flags.chunk);
  if (!walk.ok()) return Fail(walk.status());

  std::optional<ServerRow> server;
  if (context.address_given()) {
    const auto client = context.Connect();
    if (!client.ok()) return Fail(client.status());
    const auto asked = Ask(**client, inputs.request, *problem, *walk, flags.sequence, flags.head, row);
    if (!asked.ok()) return Fail(asked.status());
    server = *asked;
  }
  if (context.json) {
    nlohmann::ordered_json json = ToJson(*walk);
    json["row"] = row;
    if (server) {
      json["server"] = {{"kernel", server->kernel},       {"device", server->device},
                        {"out_error", server->out_error}, {"lse_error", server->lse_error},
                        {"tolerance", server->tolerance}, {"ok", server->ok()}};
    }
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("Query row %ld of head %ld of sequence %ld, in float64.\n\n%s", static_cast<long>(row),
                static_cast<long>(flags.head), static_cast<long>(flags.sequence),
                ToText(*walk, flags.columns).c_str());
    if (server) {
      std::printf(
          "\n  the server's %s on %s differs by %.1e (log-sum-exp %.1e; up to %.1e is rounding): %s\n",
          server->kernel.c_str(), server->device.c_str(), server->out_error, server->lse_error,
          server->tolerance, server->ok() ? "ok" : "FAILED");
    } else {
      std::printf("\n  name a server with --address to compare its answer\n");
    }
  }
  return !server || server->ok() ? kExitOk : kExitError;
}

}  // namespace

void AddExplain(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ExplainFlags>();
  flags->random.sizes = {1, 1, 64, 8};
  CLI::App& command = *app.add_subcommand("explain", "Walk one query row chunk by chunk, as the kernels do");
  command.footer(
      "Computed here, in float64, from FILE's q, k and v or from random ones; with --address the server's\n"
      "answer is compared.\n"
      "Example: attend explain --length 48 --chunk 16 --causal bottom-right --row 40");
  command.add_option("FILE", flags->file, "Safetensors file with q, k and v")->check(CLI::ExistingFile);
  command.add_option("--sequence", flags->sequence, "Sequence of the batch")->capture_default_str();
  command.add_option("--head", flags->head, "Query head")->capture_default_str();
  command.add_option("--row", flags->row, "Query row (default the last)");
  command.add_option("--chunk", flags->chunk, "Keys in a chunk")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--columns", flags->columns, "Elements of outputs to print")->capture_default_str();
  AddRandomFlags(command, flags->random);
  AddAttentionFlags(command, flags->attention);
  command.callback([flags, &context] { context.exit_code = Explain(*flags, context); });
}

}  // namespace attend::cli
