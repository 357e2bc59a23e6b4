// The service end to end: the client library's calls of several shapes and numbers of callers, as fast as
// they are answered.
#ifndef ATTEND_CLIENT_CLI_SERVICE_H_
#define ATTEND_CLIENT_CLI_SERVICE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/client.h"
#include "client/cli/inputs.h"
#include "client/cli/load.h"

namespace attend::cli {

struct ServiceRow {
  Sizes sizes;
  int callers = 1;
};

struct ServiceOptions {
  std::vector<ServiceRow> rows = DefaultRows();
  DataType dtype = DataType::kFp16;
  Causal causal = Causal::kBottomRight;
  double seconds_each = 2;
  double warmup_s = 0.5;

  // Small, large, and many at once.
  static std::vector<ServiceRow> DefaultRows();
};

struct ServiceStep {
  ServiceRow row;
  LoadOptions load;
  LoadResult result;
};

// One row after another. Aborted where no call of a row succeeds.
absl::StatusOr<std::vector<ServiceStep>> RunService(Client& client, const ServiceOptions& options);

// "1,8,128,64,64" (batch, heads, length, head_dim, callers); InvalidArgument where it is not that.
absl::StatusOr<ServiceRow> ParseServiceRow(const std::string& text);

nlohmann::ordered_json ToJson(const std::vector<ServiceStep>& steps, const ServiceOptions& options);
std::string ToText(const std::vector<ServiceStep>& steps);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_SERVICE_H_
