// Answers of a server against float64, and against a model's own.
#ifndef ATTEND_CLIENT_CLI_ACCURACY_H_
#define ATTEND_CLIENT_CLI_ACCURACY_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/client.h"
#include "client/cli/reference.h"

namespace attend::cli {

// Largest and root-mean-square difference; infinite where one side is NaN or infinite and the other not the
// same.
struct Difference {
  double max = 0, rms = 0;
};
Difference Compare(const TensorView& got, const std::vector<double>& want);

// One kernel's answer to one problem.
struct KernelAccuracy {
  std::string problem;
  Kernel kernel = Kernel::kAuto;
  std::string device;
  Difference out, lse;              // against float64
  std::optional<Difference> model;  // against the model's own output
  std::optional<Difference> naive;  // against NAIVE's answer; unset for NAIVE
  double out_tolerance = 0, lse_tolerance = 0;
  bool ok = false;
};

// Runs NAIVE, ONLINE and FLASH on the request (whose kernel and return_lse are ignored) and compares.
// model_out: the answer that came with the problem, or null. unit_normal: q, k and v are random.
//
// Tolerances: fp32 promises 2e-6 on unit-normal inputs; on others, 2e-6 times the largest |v|. Half types
// round each weight and each output once to their own precision, by at most half an epsilon, so one epsilon
// times the largest |v|. The log-sum-exp is fp32 throughout: 4e-6 relative to the largest.
absl::StatusOr<std::vector<KernelAccuracy>> CheckKernels(Client& client, Request request,
                                                         const std::string& problem,
                                                         const TensorView* model_out, bool unit_normal);

nlohmann::ordered_json ToJson(const std::vector<KernelAccuracy>& results);
std::string ToText(const std::vector<KernelAccuracy>& results);
bool AllOk(const std::vector<KernelAccuracy>& results);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_ACCURACY_H_
