#include "kernels/work.h"

#include <algorithm>

namespace attend {
namespace {

// What tiles read of one head, and how often they rescale.
struct TileWalk {
  int64_t q_rows = 0;       // query rows read
  int64_t kv_tokens = 0;    // tokens of k (and of v) read, re-reads included
  int64_t corrections = 0;  // one for each row and key tile but its first
};

// Every kernel walks query tiles; FLASH and ONLINE visit the key tiles that some row of it sees, NAIVE all.
TileWalk Walk(const Problem& p, TileShape tile, bool all_keys) {
  TileWalk w;
  for (int64_t row = 0; row < p.q_len; row += tile.rows) {
    const int64_t row_end = std::min<int64_t>(row + tile.rows, p.q_len);
    const KeyRange keys = all_keys ? KeyRange{0, p.kv_len} : VisibleKeys(p, row, row_end);
    if (keys.begin >= keys.end) continue;
    const int64_t first = keys.begin / tile.keys;
    const int64_t last = (keys.end - 1) / tile.keys;
    const int64_t tokens = std::min<int64_t>((last + 1) * tile.keys, p.kv_len) - first * tile.keys;
    w.q_rows += row_end - row;
    w.kv_tokens += tokens;
    w.corrections += (row_end - row) * (last - first);
  }
  return w;
}

// Elements of a bias or mask that a head's `pairs` (rows x keys) touch, broadcast ones once.
int64_t ScoreElements(const ScoreStrides& s, const Problem& p, int64_t keys) {
  return (s.head == 0 ? 1 : p.q_heads) * (s.row == 0 ? 1 : p.q_len) * (s.key == 0 ? 1 : keys);
}

struct Bytes {
  int64_t q = 0, k = 0, v = 0, scores = 0, modifiers = 0, out = 0, weights = 0;
};

// Each tensor once. FLASH and ONLINE carry only the keys that some row sees.
Bytes TensorBytes(const Launch& launch, const Problem& p) {
  const int64_t size = SizeOf(launch.dtype);
  const bool all_keys = launch.kernel == Kernel::kNaive;
  const KeyRange range = p.q_len == 0 ? KeyRange{} : VisibleKeys(p, 0, p.q_len);
  const int64_t keys = p.q_len == 0 ? 0 : all_keys ? p.kv_len : range.end - range.begin;
  Bytes b;
  b.q = p.q_len * p.q_heads * launch.head_dim * size;
  b.k = keys * p.kv_heads * launch.head_dim * size;
  b.v = keys * p.kv_heads * launch.v_head_dim * size;
  b.scores = p.q_len * p.kv_len * p.q_heads * 4;
  if (p.bias != nullptr) b.modifiers += ScoreElements(p.bias_strides, p, keys) * (p.bias_is_fp32 ? 4 : size);
  if (p.mask != nullptr) b.modifiers += ScoreElements(p.mask_strides, p, keys);
  if (p.alibi_slopes != nullptr) b.modifiers += 4 * p.q_heads;
  if (p.sinks != nullptr && !launch.partial) b.modifiers += 4 * p.q_heads;
  b.out = p.q_len_padded * p.q_heads * launch.v_head_dim * (launch.partial ? 4 : size);
  if (p.lse != nullptr) b.out += 4 * p.q_heads * p.q_len_padded;
  if (p.weights != nullptr) {
    const int64_t rows = p.weight_rows == nullptr ? p.q_len_padded : p.weight_row_count;
    b.weights = 4 * p.q_heads * rows * p.kv_len_padded;
  }
  return b;
}

WorkCount Count(const Launch& launch, const Problem& p, TileShape tile) {
  const int64_t size = SizeOf(launch.dtype);
  const Bytes b = TensorBytes(launch, p);
  const TileWalk walk = Walk(p, tile, launch.kernel == Kernel::kNaive);
  WorkCount work;
  work.flops = 2 * VisiblePairs(p) * p.q_heads * (launch.head_dim + launch.v_head_dim);
  work.read_bytes = b.q + b.k + b.v + b.modifiers;
  work.write_bytes = b.out + b.weights;
  work.tile_bytes =
      p.q_heads * size *
          (walk.q_rows * launch.head_dim + walk.kv_tokens * (launch.head_dim + launch.v_head_dim)) +
      b.modifiers;
  int64_t score_reads = 0;
  switch (launch.kernel) {
    case Kernel::kNaive:
      score_reads = 5 * b.scores;  // max; exp; sum; divide; weighted sum
      work.write_bytes += 3 * b.scores;
      work.scratch_bytes = b.scores;
      break;
    case Kernel::kOnline:
      score_reads = 2 * b.scores;
      work.write_bytes += b.scores;
      work.scratch_bytes = b.scores;
      work.corrections = walk.corrections * p.q_heads;
      work.correction_flops = work.corrections;  // the denominator
      break;
    default:
      work.corrections = walk.corrections * p.q_heads;
      work.correction_flops = work.corrections * (1 + launch.v_head_dim);  // the output too
      // Weights of chosen rows come from a second look at their queries and at k.
      if (b.weights > 0) work.read_bytes += b.k + p.weight_row_count * p.q_heads * launch.head_dim * size;
      break;
  }
  work.read_bytes += score_reads;
  work.tile_bytes += score_reads;
  return work;
}

}  // namespace

WorkCount CountWork(const Launch& launch, TileShape tile) {
  WorkCount work;
  for (const Problem& p : launch.problems) work += Count(launch, p, tile);
  return work;
}

}  // namespace attend
