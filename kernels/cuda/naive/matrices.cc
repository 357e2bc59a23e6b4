#include "kernels/cuda/naive/matrices.h"

#include "kernels/cuda/flash/fp32/flash_fp32.h"

namespace attend::cuda::naive {
namespace {

int64_t Divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Blocks(const Launch& launch, const Problem& p, Walk walk) {
  switch (walk) {
    case Walk::kScoreStrips:
      return p.q_heads * Divide(p.q_len, ScoreRows(launch)) *
             Divide(p.kv_len, launch.dtype == DataType::kFp32 ? Fp32StripKeys(p) : StripKeys(p));
    case Walk::kRowGroups:
      return Divide(p.q_heads * p.q_len, RowsPerBlock(ScoreStride(p)));
    case Walk::kOutTiles:
      return p.q_heads * Divide(p.q_len, kOutRows);
  }
  return 0;
}

}  // namespace

MatrixSizes SizesOf(const Launch& launch) {
  MatrixSizes sizes;
  for (const Problem& p : launch.problems) {
    const int64_t rows = p.q_heads * p.q_len;
    sizes.rows += rows;
    sizes.scores += rows * ScoreStride(p);
  }
  return sizes;
}

Matrices Open(const Launch& launch, Carver& carver) {
  const MatrixSizes sizes = SizesOf(launch);
  Matrices m;
  m.scores = static_cast<float*>(carver.Device(4 * sizes.scores));
  m.row_max = static_cast<float*>(carver.Device(4 * sizes.rows));
  m.row_sum = static_cast<float*>(carver.Device(4 * sizes.rows));
  return m;
}

absl::Status MakeWorkList(const Launch& launch, Walk walk, Carver& carver, Stream stream, WorkList* work) {
  MatrixSizes before;
  int64_t tile_bytes = 0;
  auto fill = [&](size_t, ProblemItem& item) {
    const Problem& p = item.problem;
    item.offset = before.scores;
    item.row_offset = before.rows;
    item.tile_offset = tile_bytes;
    if (launch.dtype == DataType::kFp32) tile_bytes += flash_fp32::SplitBytes(launch, p);
    const int64_t rows = p.q_heads * p.q_len;
    before.rows += rows;
    before.scores += rows * ScoreStride(p);
    return Blocks(launch, p, walk);
  };
  const int64_t bytes = WorkList::Bytes(launch);
  return MakeList(launch.problems, fill, carver.Device(bytes), carver.Host(bytes), stream, &work->list,
                  &work->blocks);
}

}  // namespace attend::cuda::naive
