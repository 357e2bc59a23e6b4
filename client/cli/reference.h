// Attention in float64, step by step as the formula stands: what every kernel's answer is checked against.
#ifndef ATTEND_CLIENT_CLI_REFERENCE_H_
#define ATTEND_CLIENT_CLI_REFERENCE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/types.h"

namespace attend::cli {

// A request's sizes, where the elements of its tensors lie, and q, k and v in float64.
struct Problem64 {
  Layout layout = Layout::kBhld;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  int64_t q_len = 0, kv_len = 0;               // padded lengths; packed: the totals
  std::vector<int64_t> q_lengths, kv_lengths;  // [batch], always filled
  std::vector<int64_t> q_starts, kv_starts;    // packed: where each sequence begins
  std::vector<double> q, k, v;

  // Index of the first element of a row of `dim` elements of a q-like or k-like tensor.
  int64_t QRow(int64_t b, int64_t h, int64_t i, int64_t dim) const;
  int64_t KvRow(int64_t b, int64_t h, int64_t j, int64_t dim) const;
  // Index of a row's lse.
  int64_t Lse(int64_t b, int64_t h, int64_t i) const;
  // Keys [first, second) that causal mask and window leave to query i of sequence b.
  std::pair<int64_t, int64_t> VisibleKeys(const Request& request, int64_t b, int64_t i) const;
};

// InvalidArgument where the shapes do not fit together.
absl::StatusOr<Problem64> MakeProblem64(const Request& request);

// The score of one query and one key after scale, softcap, bias and ALiBi; -inf where the query may not see
// the key.
double Score(const Request& request, const Problem64& g, int64_t b, int64_t h, int64_t i, int64_t j);

struct ReferenceResult {
  std::vector<double> out;      // in the request's layout
  std::vector<double> lse;      // [B,Hq,Lq], packed [Hq,total]
  std::vector<double> weights;  // as the request asks; empty where it does not
};

// Work is O(B * Hq * Lq * Lk * (D + Dv)), on one thread.
absl::StatusOr<ReferenceResult> Reference(const Request& request);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_REFERENCE_H_
