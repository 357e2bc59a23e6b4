#include "client/cli/service.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/table.h"

namespace attend::cli {

std::vector<ServiceRow> ServiceOptions::DefaultRows() {
  return {{{1, 8, 128, 64}, 1},    {{1, 8, 128, 64}, 64},   {{1, 8, 16, 64}, 64}, {{1, 8, 512, 64}, 64},
          {{1, 32, 1024, 128}, 8}, {{1, 32, 4096, 128}, 1}, {{4, 8, 4096, 64}, 1}};
}

absl::StatusOr<ServiceRow> ParseServiceRow(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  ServiceRow row;
  int64_t* const sizes[] = {&row.sizes.batch, &row.sizes.heads, &row.sizes.length, &row.sizes.head_dim};
  bool ok = parts.size() == 5 && absl::SimpleAtoi(parts[4], &row.callers) && row.callers > 0;
  for (size_t i = 0; ok && i < 4; ++i) ok = absl::SimpleAtoi(parts[i], sizes[i]) && *sizes[i] > 0;
  if (!ok) return absl::InvalidArgumentError("give batch,heads,length,head_dim,callers, each above 0");
  return row;
}

absl::StatusOr<std::vector<ServiceStep>> RunService(Client& client, const ServiceOptions& options) {
  std::vector<ServiceStep> steps;
  for (const ServiceRow& row : options.rows) {
    Inputs inputs = RandomInputs(row.sizes, options.dtype, /*seed=*/1);
    inputs.request.causal = options.causal;
    ServiceStep step;
    step.row = row;
    step.load.concurrency = row.callers;
    step.load.duration_s = options.seconds_each;
    step.load.warmup_s = options.warmup_s;
    step.result = RunLoad(client, inputs.request, step.load);
    if (step.result.latency_s.empty()) {
      std::string codes;
      for (const auto& [code, count] : step.result.errors) absl::StrAppend(&codes, " ", code);
      return absl::AbortedError(absl::StrCat("no call of ", ToString(row.sizes.q()), " with ", row.callers,
                                             " callers was answered in time:", codes));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

nlohmann::ordered_json ToJson(const std::vector<ServiceStep>& steps, const ServiceOptions& options) {
  auto rows = nlohmann::ordered_json::array();
  for (const ServiceStep& step : steps) {
    const Sizes& s = step.row.sizes;
    nlohmann::ordered_json row = {
        {"batch", s.batch}, {"heads", s.heads}, {"length", s.length}, {"head_dim", s.head_dim}};
    row.update(ToJson(step.result, step.load));
    rows.push_back(std::move(row));
  }
  return {{"bench", "service"},
          {"dtype", std::string(Name(options.dtype))},
          {"causal", std::string(Name(options.causal))},
          {"rows", std::move(rows)}};
}

std::string ToText(const std::vector<ServiceStep>& steps) {
  Table table({"q, k, v", "callers", "calls/s", "p50", "p99", "in", "out", "errors"});
  for (const ServiceStep& step : steps) {
    const LoadResult& r = step.result;
    const double per_s = r.seconds > 0 ? static_cast<double>(r.latency_s.size()) / r.seconds : 0;
    int64_t errors = 0;
    for (const auto& [code, count] : r.errors) errors += count;
    table.Add({ToString(step.row.sizes.q()), absl::StrCat(step.row.callers), absl::StrFormat("%.1f", per_s),
               Seconds(r.Percentile(50)), Seconds(r.Percentile(99)),
               absl::StrCat(Bytes(per_s * static_cast<double>(r.request_bytes)), "/s"),
               absl::StrCat(Bytes(per_s * static_cast<double>(r.response_bytes)), "/s"),
               absl::StrCat(errors)});
  }
  return table.ToString();
}

}  // namespace attend::cli
