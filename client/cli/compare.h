// A benchmark's figures held against those of a former run.
#ifndef ATTEND_CLIENT_CLI_COMPARE_H_
#define ATTEND_CLIENT_CLI_COMPARE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attend::cli {

// One figure of both runs.
struct Change {
  std::string figure;  // "[1,8,128,64] x 64: calls/s"
  double before = 0, now = 0;
  double ratio = 0;  // above 1 is better, whichever way the figure counts
  bool worse = false;
};

// What `attend bench ladder`, `bench load` and `bench --service` print as JSON, a former run's and this
// one's. Figures are matched by shape and callers (kernel and length); those of one run only are left out.
// worse: by more than `tolerance`: a ratio below 1 - tolerance. InvalidArgument where nothing matches, or
// JSON of another form.
absl::StatusOr<std::vector<Change>> CompareRuns(const nlohmann::ordered_json& before,
                                                const nlohmann::ordered_json& now, double tolerance);

bool AnyWorse(const std::vector<Change>& changes);
std::string ToText(const std::vector<Change>& changes);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_COMPARE_H_
