// The scores of a whole launch in device memory, as NAIVE and ONLINE keep them, and the kernels that walk
// them. Everything is fp32 whatever the launch's dtype.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_MATRICES_H_
#define ATTEND_KERNELS_CUDA_NAIVE_MATRICES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/flash/fp32/tile.h"
#include "kernels/cuda/problem_list.h"

namespace attend::cuda::naive {

// Elements from one row of scores to the next; the columns behind kv_len hold -inf, then 0, so that rows
// are walked 16 bytes at a time.
constexpr int64_t ScoreStride(const Problem& p) { return (p.kv_len + 3) / 4 * 4; }

// scores: of each problem [q_heads, q_len, ScoreStride], from its item's offset on. row_max and row_sum:
// of each problem [q_heads, q_len], from its item's row_offset on.
struct Matrices {
  float* scores = nullptr;
  float* row_max = nullptr;
  float* row_sum = nullptr;
  const char* tiles = nullptr;  // fp32: k and v split (flash/fp32), from the item's tile_offset on
};

struct MatrixSizes {
  int64_t scores = 0;  // elements
  int64_t rows = 0;
};
MatrixSizes SizesOf(const Launch& launch);

// Carves them, tiles not included.
Matrices Open(const Launch& launch, Carver& carver);

// Each kernel finds its work in a list of its own; the passes over rows share one.
struct WorkList {
  ProblemList list;
  int64_t blocks = 0;
  static int64_t Bytes(const Launch& launch) { return ListBytes(launch.problems.size()); }
};

// Blocks of 256 threads. kRowGroups: a warp to a row, or a block to a long one.
enum class Walk : uint8_t { kScoreStrips, kRowGroups, kOutTiles };
absl::Status MakeWorkList(const Launch& launch, Walk walk, Carver& carver, Stream stream, WorkList* work);

// scores = the modified scores, -inf where a row may not see a key.
absl::Status EnqueueScores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream);

enum class Pass : uint8_t {
  kMax,     // row_max = the largest score of the row, its sink included
  kExp,     // scores = exp(scores - row_max)
  kSum,     // row_sum = the sum of the row and its sink's part; lse
  kDivide,  // scores = scores / row_sum; all weights, where they are wanted
  kStats,   // ONLINE: row_max, row_sum and lse in one read
  kShort,   // the first four one after the other, row by row in one launch, for short rows
};
absl::Status EnqueuePass(const Launch& launch, Pass pass, const WorkList& work, const Matrices& m,
                         Stream stream);

// out = weights · v. With form_weights (ONLINE) the matrix still holds scores, and each weight is formed as
// it is read, and written where all weights are wanted.
absl::Status EnqueueWeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                const Matrices& m, Stream stream);

// Query rows of a block of EnqueueScores and of EnqueueWeightedSum.
constexpr int64_t ScoreRows(const Launch& launch) { return launch.dtype == DataType::kFp32 ? 64 : 128; }
inline constexpr int64_t kOutRows = 64;
// Keys that a block of EnqueueScores walks: enough blocks for a GPU where keys are few, and few loads of q
// where they are many.
constexpr int64_t StripKeys(const Problem& p) { return p.kv_len <= 512 ? 64 : p.kv_len <= 1024 ? 128 : 512; }
constexpr int64_t Fp32StripKeys(const Problem& p) {
  return p.kv_len <= 256 ? 64 : p.kv_len <= 512 ? 256 : 512;
}
// Rows that one launch takes through all passes of NAIVE: what they read and write is the same, but in so
// small a matrix a launch takes longer than a pass.
inline constexpr int64_t kShortRow = 512;
// Rows that a block of EnqueuePass takes: 8 shorter ones, each a warp's, or one.
constexpr int64_t RowsPerBlock(int64_t score_stride) { return score_stride <= 4096 ? 8 : 1; }

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_MATRICES_H_
