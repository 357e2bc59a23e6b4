// The ladder: NAIVE, ONLINE and FLASH over growing lengths, as the server's own reports time and count them.
#ifndef ATTEND_CLIENT_CLI_LADDER_H_
#define ATTEND_CLIENT_CLI_LADDER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/client.h"
#include "client/cli/inputs.h"

namespace attend::cli {

struct LadderOptions {
  Sizes sizes;  // its length is not used
  std::vector<int64_t> lengths = {64, 128, 256, 512, 1024, 2048, 4096};
  DataType dtype = DataType::kFp32;
  Causal causal = Causal::kNone;
  int repeats_max = 20;
  double seconds_each = 0.5;  // of calls per kernel and length, after one that is not counted
};

struct LadderStep {
  int64_t length = 0;
  Kernel kernel = Kernel::kAuto;
  std::string device;
  std::string refused;  // why the server did not run it; else empty
  int repeats = 0;
  double kernel_s = 0;  // median
  double call_s = 0;    // median, from send to result
  int64_t flops = 0;
  int64_t moved_bytes = 0;  // read and written
  double speedup = 0;       // NAIVE's kernel time by this one's; 0 where NAIVE did not run
};

// A refusal (too large, too busy) is a step of its own; any other error ends the ladder.
absl::StatusOr<std::vector<LadderStep>> RunLadder(Client& client, const LadderOptions& options);

nlohmann::ordered_json ToJson(const std::vector<LadderStep>& steps);
std::string ToText(const std::vector<LadderStep>& steps);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_LADDER_H_
