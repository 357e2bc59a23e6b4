// One query row, walked as the kernels walk it, in float64: what each of them carries from step to step.
#ifndef ATTEND_CLIENT_CLI_WALK_H_
#define ATTEND_CLIENT_CLI_WALK_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/types.h"

namespace attend::cli {

// FLASH's state after a chunk of keys. Before the first: max -inf (or the sink), denominator 0 (or 1).
struct ChunkState {
  int64_t begin = 0, end = 0;  // keys
  int64_t visible = 0;         // of them, those that the query may see
  double chunk_max = 0;        // largest score in the chunk
  double max = 0;              // largest score so far
  double correction = 0;       // exp(max before - max now): what the state before is worth now
  double denominator = 0;      // sum of exp(score - max) so far
  std::vector<double> out;     // attention over the keys so far
};

// What a kernel reads, writes and keeps for this row in one pass over its scores.
struct Pass {
  std::string kernel, what;
  int64_t read = 0, written = 0;  // numbers of the row's scores or weights, in memory
  std::string keeps;
};

struct Walk {
  std::vector<ChunkState> chunks;
  std::vector<Pass> passes;
  std::vector<double> out;  // FLASH's, after the last chunk
  double lse = 0;
  std::vector<double> naive_out, online_out;  // by their own ways
  int64_t online_corrections = 0;             // times that ONLINE's maximum rose, key by key
};

// The row of query i of head h of sequence b, in chunks of chunk_keys keys. InvalidArgument where there is
// no such row, or the request's shapes do not fit.
absl::StatusOr<Walk> WalkRow(const Request& request, int64_t b, int64_t h, int64_t i, int64_t chunk_keys);

nlohmann::ordered_json ToJson(const Walk& walk);
// out_columns: how many elements of outputs to print.
std::string ToText(const Walk& walk, size_t out_columns);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_WALK_H_
