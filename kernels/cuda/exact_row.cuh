// One row of attention by one warp in plain fp32, over exactly the keys that the row sees: the path for rows
// in which the fast one met NaN or infinity, its own or (a zero weight times NaN) another row's. Slow.
#ifndef ATTEND_KERNELS_CUDA_EXACT_ROW_CUH_
#define ATTEND_KERNELS_CUDA_EXACT_ROW_CUH_

#include <cstdint>

#include "kernels/cuda/score.cuh"

namespace attend::cuda {

// Every lane of the warp calls it; sinks only where they enter (not in a partial launch). Writes out (fp32,
// or T) and lse.
template <typename T>
__device__ __noinline__ void ExactRow(const Problem& p, int32_t head, int64_t row, int32_t head_dim,
                                      int32_t v_head_dim, bool sinks, bool out_is_fp32) {
  constexpr int kColumns = kHeadDimMax / 32;  // of each lane
  const int lane = threadIdx.x % 32;
  const int32_t kv_head = head / (p.q_heads / p.kv_heads);
  const RowScore<T> score(p, head, row);
  const T* q = QueryRow<T>(p, row, head);
  float max = NegativeInfinity(), sum = 0.0f, out[kColumns] = {};
  for (int64_t key0 = score.bounds.begin; key0 < score.bounds.end; key0 += 32) {
    const int64_t key = key0 + lane;
    const bool visible = key < score.bounds.end && score.Visible(key);
    float s = NegativeInfinity();
    if (visible) {
      const T* k = KeyRow<T>(p, key, kv_head);
      float dot = 0.0f;
      for (int d = 0; d < head_dim; ++d) dot = fmaf(ToFloat(q[d]), ToFloat(k[d]), dot);
      s = score.Modify(key, dot);
    }
    float top = fmaxf(max, s);
    for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, i));
    const float base = top == NegativeInfinity() ? 0.0f : top;
    const float correction = expf(max - base);
    const float weight = visible ? expf(s - base) : 0.0f;
    max = top;
    float tile_sum = weight;
    for (int i = 16; i > 0; i /= 2) tile_sum += __shfl_xor_sync(0xffffffff, tile_sum, i);
    sum = sum * correction + tile_sum;
    for (int c = 0; c < kColumns; ++c) out[c] *= correction;
    for (uint32_t left = __ballot_sync(0xffffffff, visible); left != 0; left &= left - 1) {
      const int source = __ffs(static_cast<int>(left)) - 1;
      const float w = __shfl_sync(0xffffffff, weight, source);
      const T* v = ValueRow<T>(p, key0 + source, kv_head);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c * 32 + lane < v_head_dim) out[c] = fmaf(w, ToFloat(v[c * 32 + lane]), out[c]);
      }
    }
  }
  if (sinks) {
    const float sink = p.sinks[head];
    const float top = fmaxf(max, sink);
    const float base = top == NegativeInfinity() ? 0.0f : top;
    const float correction = expf(max - base);
    sum = sum * correction + expf(sink - base);
    for (int c = 0; c < kColumns; ++c) out[c] *= correction;
    max = top;
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const int64_t offset = row * p.out_strides.token + head * p.out_strides.head;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = c * 32 + lane;
    if (column >= v_head_dim) continue;
    if (out_is_fp32) {
      static_cast<float*>(p.out)[offset + column] = out[c] * inverse;
    } else {
      static_cast<T*>(p.out)[offset + column] = FromFloat<T>(out[c] * inverse);
    }
  }
  if (p.lse != nullptr && lane == 0) {
    const float base = max == NegativeInfinity() ? 0.0f : max;
    p.lse[head * p.lse_head_stride + row] = sum == 0.0f ? NegativeInfinity() : base + logf(sum);
  }
}

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_EXACT_ROW_CUH_
