#include "client/cli/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/numbers.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

double LargestFinite(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

nlohmann::ordered_json ToJson(const Difference& d) { return {{"max", d.max}, {"rms", d.rms}}; }

std::string Number(double value) { return absl::StrFormat("%.1e", value); }

}  // namespace

Difference Compare(const TensorView& got, const std::vector<double>& want) {
  Difference difference;
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = ToDouble(got.dtype, got.data, static_cast<int64_t>(i));
    const bool same = value == want[i] || (std::isnan(value) && std::isnan(want[i]));
    double error = same ? 0 : std::fabs(value - want[i]);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    difference.max = std::max(difference.max, error);
    squares += error * error;
  }
  if (!want.empty()) difference.rms = std::sqrt(squares / static_cast<double>(want.size()));
  return difference;
}

absl::StatusOr<std::vector<KernelAccuracy>> CheckKernels(Client& client, Request request,
                                                         const std::string& problem,
                                                         const TensorView* model_out, bool unit_normal) {
  request.return_lse = true;
  const absl::StatusOr<ReferenceResult> want = Reference(request);
  if (!want.ok()) return want.status();
  const double largest_v = std::max(1.0, LargestFinite(ToDoubles(request.v)));
  double out_tolerance = largest_v * Epsilon(request.q.dtype);
  if (request.q.dtype == DataType::kFp32) out_tolerance = 2e-6 * (unit_normal ? 1 : largest_v);
  const double lse_tolerance = 4e-6 * std::max(1.0, LargestFinite(want->lse));

  std::vector<KernelAccuracy> results;
  std::vector<double> naive;
  for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash}) {
    request.kernel = kernel;
    const absl::StatusOr<Response> response = client.Attend(request);
    if (!response.ok()) return response.status();
    KernelAccuracy result;
    result.problem = problem;
    result.kernel = response->report.kernel;
    result.device = response->report.device;
    result.out = Compare(response->out.view(), want->out);
    result.lse = Compare(response->lse->view(), want->lse);
    if (model_out != nullptr) result.model = Compare(response->out.view(), ToDoubles(*model_out));
    if (kernel == Kernel::kNaive) {
      naive = ToDoubles(response->out.view());
    } else {
      result.naive = Compare(response->out.view(), naive);
    }
    result.out_tolerance = out_tolerance;
    result.lse_tolerance = lse_tolerance;
    // The model's own output has an error of its own, of the same kind.
    result.ok = result.out.max <= out_tolerance && result.lse.max <= lse_tolerance &&
                (!result.model || result.model->max <= 2 * out_tolerance) && result.kernel == kernel;
    results.push_back(std::move(result));
  }
  return results;
}

nlohmann::ordered_json ToJson(const std::vector<KernelAccuracy>& results) {
  auto list = nlohmann::ordered_json::array();
  for (const KernelAccuracy& r : results) {
    nlohmann::ordered_json json = {{"problem", r.problem},
                                   {"kernel", std::string(Name(r.kernel))},
                                   {"device", r.device},
                                   {"out_error", ToJson(r.out)},
                                   {"out_tolerance", r.out_tolerance},
                                   {"lse_error", ToJson(r.lse)},
                                   {"lse_tolerance", r.lse_tolerance},
                                   {"ok", r.ok}};
    if (r.model) json["model_error"] = ToJson(*r.model);
    if (r.naive) json["naive_difference"] = ToJson(*r.naive);
    list.push_back(std::move(json));
  }
  return list;
}

std::string ToText(const std::vector<KernelAccuracy>& results) {
  const bool model =
      std::any_of(results.begin(), results.end(), [](const auto& r) { return r.model.has_value(); });
  std::vector<std::string> heading = {"problem",   "kernel",    "device",    "max error",
                                      "rms error", "tolerance", "lse error", "vs naive"};
  if (model) heading.push_back("vs model");
  heading.push_back("");
  Table table(heading);
  for (const KernelAccuracy& r : results) {
    std::vector<std::string> row = {r.problem,         std::string(Name(r.kernel)),
                                    r.device,          Number(r.out.max),
                                    Number(r.out.rms), Number(r.out_tolerance),
                                    Number(r.lse.max), r.naive ? Number(r.naive->max) : "-"};
    if (model) row.push_back(r.model ? Number(r.model->max) : "-");
    row.push_back(r.ok ? "ok" : "FAILED");
    table.Add(std::move(row));
  }
  return table.ToString();
}

bool AllOk(const std::vector<KernelAccuracy>& results) {
  return std::all_of(results.begin(), results.end(), [](const KernelAccuracy& r) { return r.ok; });
}

}  // namespace attend::cli
