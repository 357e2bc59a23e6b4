#include "client/cli/ladder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::StatusOr<LadderStep> RunStep(Client& client, const Request& request, const LadderOptions& options) {
  LadderStep step;
  step.kernel = request.kernel;
  std::vector<double> kernel_s, call_s;
  absl::Time end;
  for (int i = 0; i <= options.repeats_max; ++i) {
    const absl::Time sent = absl::Now();
    const absl::StatusOr<Response> response = client.Attend(request);
    if (!response.ok()) {
      if (response.status().code() != absl::StatusCode::kInvalidArgument &&
          response.status().code() != absl::StatusCode::kResourceExhausted) {
        return response.status();
      }
      step.refused = std::string(response.status().message());
      return step;
    }
    const absl::Time received = absl::Now();
    if (i == 0) {
      // The first call pays for what is set up once.
      end = received + absl::Seconds(options.seconds_each);
      step.device = response->report.device;
      step.flops = response->report.flops;
      step.moved_bytes = response->report.hbm_read_bytes + response->report.hbm_write_bytes;
      continue;
    }
    kernel_s.push_back(static_cast<double>(response->report.kernel_ns) * 1e-9);
    call_s.push_back(absl::ToDoubleSeconds(received - sent));
    if (received >= end) break;
  }
  step.repeats = static_cast<int>(kernel_s.size());
  step.kernel_s = Median(std::move(kernel_s));
  step.call_s = Median(std::move(call_s));
  return step;
}

}  // namespace

absl::StatusOr<std::vector<LadderStep>> RunLadder(Client& client, const LadderOptions& options) {
  std::vector<LadderStep> steps;
  Progress progress;
  for (const int64_t length : options.lengths) {
    Sizes sizes = options.sizes;
    sizes.length = length;
    Inputs inputs = RandomInputs(sizes, options.dtype, 1);
    inputs.request.causal = options.causal;
    double naive_s = 0;
    for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash}) {
      progress.Show(absl::StrCat(Name(kernel), " ", ToString(sizes.q())));
      inputs.request.kernel = kernel;
      absl::StatusOr<LadderStep> step = RunStep(client, inputs.request, options);
      if (!step.ok()) return step.status();
      step->length = length;
      if (kernel == Kernel::kNaive) naive_s = step->kernel_s;
      if (step->kernel_s > 0) step->speedup = naive_s / step->kernel_s;
      steps.push_back(*std::move(step));
    }
  }
  return steps;
}

nlohmann::ordered_json ToJson(const std::vector<LadderStep>& steps) {
  auto list = nlohmann::ordered_json::array();
  for (const LadderStep& s : steps) {
    nlohmann::ordered_json json = {{"length", s.length}, {"kernel", std::string(Name(s.kernel))}};
    if (!s.refused.empty()) {
      json["refused"] = s.refused;
    } else {
      json["device"] = s.device;
      json["repeats"] = s.repeats;
      json["kernel_s"] = s.kernel_s;
      json["call_s"] = s.call_s;
      json["flops"] = s.flops;
      json["moved_bytes"] = s.moved_bytes;
      json["speedup"] = s.speedup;
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::string ToText(const std::vector<LadderStep>& steps) {
  Table table({"length", "kernel", "kernel time", "speed-up", "bytes moved", "saving", "GFLOP/s", "call"});
  int64_t naive_bytes = 0;
  std::string refusals;
  for (const LadderStep& s : steps) {
    const std::string name(Name(s.kernel));
    if (!s.refused.empty()) {
      table.Add({absl::StrCat(s.length), name, "refused", "-", "-", "-", "-", "-"});
      absl::StrAppend(&refusals, "  ", name, " at ", s.length, ": ", s.refused, "\n");
      if (s.kernel == Kernel::kNaive) naive_bytes = 0;
      continue;
    }
    if (s.kernel == Kernel::kNaive) naive_bytes = s.moved_bytes;
    const auto bytes = static_cast<double>(s.moved_bytes);
    table.Add(
        {absl::StrCat(s.length), name, Seconds(s.kernel_s),
         s.speedup > 0 ? absl::StrFormat("%.2fx", s.speedup) : "-", Bytes(bytes),
         naive_bytes > 0 && bytes > 0 ? absl::StrFormat("%.1fx", static_cast<double>(naive_bytes) / bytes)
                                      : "-",
         s.kernel_s > 0 ? absl::StrFormat("%.1f", static_cast<double>(s.flops) * 1e-9 / s.kernel_s) : "-",
         Seconds(s.call_s)});
  }
  return table.ToString() + refusals;
}

}  // namespace attend::cli
