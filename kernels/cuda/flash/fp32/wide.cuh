// The tf32 path of single tiles: q, k and v straight from device memory, each value split by itself, so that
// its range is all of fp32's. For tiles whose values one power of two cannot scale. Several times slower;
// not inlined, its operands in local memory.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_WIDE_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_WIDE_CUH_

#include <cstdint>

#include "kernels/cuda/score.cuh"
#include "kernels/cuda/split_tf32.cuh"

namespace attend::cuda::flash_fp32 {

// 16 query rows of a warp, as mma has them: thread (g, t) = (lane / 4, lane % 4) holds of rows g and g + 8
// columns 2t and 2t + 1 of each group of 8.
struct WideRows {
  const Problem* problem;
  int32_t head, kv_head;
  int64_t row0;  // the first of the 16

  __device__ const float* Query(int half) const {
    const int64_t row = row0 + half * 8 + threadIdx.x % 32 / 4;
    return row < problem->q_len ? QueryRow<float>(*problem, row, head) : nullptr;
  }
};

__device__ inline float At(const float* row, int i) { return row == nullptr ? 0.0f : row[i]; }

// s = q · k of the 8 keys from key0 on.
__device__ __noinline__ inline void WideScores(const WideRows& rows, int64_t key0, int32_t head_dim,
                                               float (&s)[4]) {
  const Problem& p = *rows.problem;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int64_t key = key0 + lane / 4;
  const float* k = key < p.kv_len ? KeyRow<float>(p, key, rows.kv_head) : nullptr;
  const float* q[2] = {rows.Query(0), rows.Query(1)};
  Fp32Accumulator acc;
  for (int d = 0; d < head_dim; d += 8) {
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tf32Pair pair = SplitTf32(At(q[i % 2], d + t + i / 2 * 4));
      hi[i] = pair.hi;
      lo[i] = pair.lo;
    }
    acc.Mma(hi, lo, SplitTf32(At(k, d + t)), SplitTf32(At(k, d + t + 4)));
    if (d % 32 == 24) acc.Fold();
  }
  acc.Fold();
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = acc.sum[i];
}

// out = weights · v of 8 columns from column0 on, over kKeys keys from key0 on. weights[n] are those of keys
// 8n + 2t and 8n + 2t + 1; the product takes them in this order, so that none changes its thread.
template <int kKeys>
__device__ __noinline__ void WideValues(const WideRows& rows, int64_t key0,
                                        const float (&weights)[kKeys / 8][4], int32_t column0,
                                        float (&out)[4]) {
  const Problem& p = *rows.problem;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Fp32Accumulator acc;
  for (int n = 0; n < kKeys / 8; ++n) {
    const Tf32Pair a[4] = {SplitTf32(weights[n][0]), SplitTf32(weights[n][2]), SplitTf32(weights[n][1]),
                           SplitTf32(weights[n][3])};
    const uint32_t hi[4] = {a[0].hi, a[1].hi, a[2].hi, a[3].hi};
    const uint32_t lo[4] = {a[0].lo, a[1].lo, a[2].lo, a[3].lo};
    Tf32Pair b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t key = key0 + n * 8 + 2 * t + i;
      const bool valid = key < p.kv_len;
      b[i] = SplitTf32(valid ? ValueRow<float>(p, key, rows.kv_head)[column0 + g] : 0.0f);
    }
    acc.Mma(hi, lo, b[0], b[1]);
  }
  acc.Fold();
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = acc.sum[i];
}

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_WIDE_CUH_
