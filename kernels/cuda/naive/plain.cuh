// What a tensor core did not give as a finite number, in plain fp32: not inlined, rarely run.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_PLAIN_CUH_
#define ATTEND_KERNELS_CUDA_NAIVE_PLAIN_CUH_

#include <cstdint>

#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/score.cuh"

namespace attend::cuda::naive {

// What a weight is made of, for one row: the weight itself, or (ONLINE) its score.
struct RowWeight {
  float max = 0.0f, inverse_sum = 0.0f;
  bool form = false;

  RowWeight() = default;
  __device__ RowWeight(const Matrices& m, int64_t index, bool form_weights) : form(form_weights) {
    if (!form) return;
    const float row_max = m.row_max[index], row_sum = m.row_sum[index];
    max = row_max == NegativeInfinity() ? 0.0f : row_max;
    inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
  }
  __device__ float operator()(float x) const {
    if (!form) return x;
    const float e = __expf(x - max);
    return e == 0.0f ? 0.0f : e * inverse_sum;
  }
};

// q·k of one pair.
template <typename T>
__device__ __noinline__ float PlainDot(const Problem& p, int32_t head, int64_t row, int64_t key,
                                       int32_t head_dim) {
  const T* q = QueryRow<T>(p, row, head);
  const T* k = KeyRow<T>(p, key, head / (p.q_heads / p.kv_heads));
  float dot = 0.0f;
  for (int d = 0; d < head_dim; ++d) dot = fmaf(ToFloat(q[d]), ToFloat(k[d]), dot);
  return dot;
}

// One element of out over the keys that the row sees: in the product a weight of 0 may have met NaN or
// infinity in a value that the row must not see. scores: the row's.
template <typename T>
__device__ __noinline__ float PlainSum(const Problem& p, int32_t head, int64_t row, int column,
                                       const float* scores, const RowWeight& weight) {
  const RowScore<T> score(p, head, row);
  const int32_t kv_head = head / (p.q_heads / p.kv_heads);
  float sum = 0.0f;
  for (int64_t key = score.bounds.begin; key < score.bounds.end; ++key) {
    if (!score.Visible(key)) continue;
    sum = fmaf(weight(scores[key]), ToFloat(ValueRow<T>(p, key, kv_head)[column]), sum);
  }
  return sum;
}

// Which strip or tile of which head a block has: blocks of a head follow each other, its keys fastest.
struct Place {
  int32_t head;
  int64_t row_tile;
  int64_t strip;
};
__device__ inline Place PlaceOf(const Problem& p, int64_t block, int64_t rows, int64_t strips) {
  const int64_t row_tiles = (p.q_len + rows - 1) / rows;
  const int64_t tile = block / strips;
  return {static_cast<int32_t>(tile / row_tiles), tile % row_tiles, block % strips};
}

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_PLAIN_CUH_
