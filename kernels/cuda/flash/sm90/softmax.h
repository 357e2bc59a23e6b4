// The online softmax on one tile of scores in registers (Milakov and Gimelshein 2018, arXiv:1805.02867;
// as in flash attention, arXiv:2205.14135).
//
// Scores s become weights p = 2^(s*c - M) with c = scale*log2(e) and M a row's offset: the largest s*c at the
// time the offset was last moved. Moving it costs a rescaling of the output, so it moves only when the
// maximum has grown by more than 2^kLazyLog2: weights stay below that, exact in fp32 and far from overflow
// in fp16, and the sum is of the same weights, so that the result is the same softmax.
//
// Whole tiles go without a look at their maxima: once a row has seen a key, the weights of later tiles
// are summed under the offset that stands, and only a tile whose weights add up to more than kWeightsMax
// moves it. The result is the same softmax: any offset serves that is one of the row's own scores, whose
// weight is 1 and keeps the sum from being small, as long as no weight overflows, in fp32 or as an operand of
// P·V.
//
// Each thread holds two rows; four neighbouring threads share a row.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_SOFTMAX_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_SOFTMAX_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/flash/sm90/ptx.h"

namespace attend::cuda::sm90 {

inline constexpr float kLazyLog2 = 8.0f;
// What a thread's weights of a row in a tile may add up to without a look at the maximum: fp16 ends at 2^16.
inline constexpr float kWeightsMax = 4096.0f;
// Rounding of M is harmless (it is the same for the whole row) as long as it stays below a few units; past
// this |M| the careful pass computes (s - m)*c instead, where the difference is exact.
inline constexpr float kOffsetMax = 67108864.0f;  // 2^26

__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <typename Element>
__device__ inline uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&packed, &pair, sizeof(packed));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&packed, &pair, sizeof(packed));
  }
  return packed;
}

// Two rows' running state.
struct RowState {
  float max[2] = {-INFINITY, -INFINITY};  // of s, when the offset last moved
  float sum[2] = {0.0f, 0.0f};            // of this thread's weights

  // M of a row; 0 while it has seen no key.
  __device__ float Offset(int r, float c) const { return max[r] == -INFINITY ? 0.0f : __fmul_rn(max[r], c); }
};

// The largest of each of the thread's two rows, over the four threads that share them. Independent chains,
// because the latency of a single one would show.
template <int kCount>
__device__ inline void RowMaxima(const float (&s)[kCount], float (&max)[2]) {
  constexpr int kChains = 4;  // per row
  float chain[2][kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) chain[r][i] = s[4 * (i / 2) + 2 * r + i % 2];
  }
#pragma unroll
  for (int i = kChains; i < kCount / 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      chain[r][i % kChains] = fmaxf(chain[r][i % kChains], s[4 * (i / 2) + 2 * r + i % 2]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    max[r] = fmaxf(fmaxf(chain[r][0], chain[r][1]), fmaxf(chain[r][2], chain[r][3]));
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], distance));
  }
}

// The careful pass's way with rows whose offset is too large to be rounded: subtracts the maximum from the
// scores, exactly, and leaves 0 for the offset.
template <int kCount>
__device__ inline void SubtractLargeMaxima(float (&s)[kCount], const RowState& state, float (&offset)[2]) {
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool large = fabsf(offset[r]) > kOffsetMax;
    shift[r] = large ? state.max[r] : 0.0f;
    offset[r] = large ? 0.0f : offset[r];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] -= shift[(i / 2) % 2];
}

// Takes a tile's scores in; leaves weights in their place. Returns whether some row of this warp needs its
// output scaled by correction.
template <bool kFirst, int kCount>
__device__ inline bool SoftmaxTile(float (&s)[kCount], RowState& state, float c, bool careful,
                                   float (&correction)[2]) {
  float max[2];
  RowMaxima(s, max);
  bool moved = false;
  if constexpr (kFirst) {
    state.max[0] = max[0];
    state.max[1] = max[1];
  } else {
    // Where the row has seen no key its maximum is -inf: any score moves it.
    float growth[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) growth[r] = __fmul_rn(max[r], c) - __fmul_rn(state.max[r], c);
    const bool moves[2] = {growth[0] > kLazyLog2, growth[1] > kLazyLog2};
    moved = __any_sync(0xffffffffu, moves[0] || moves[1]);
    if (moved) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        correction[r] = moves[r] ? Exp2(-growth[r]) : 1.0f;
        state.max[r] = moves[r] ? max[r] : state.max[r];
        state.sum[r] *= correction[r];
      }
    }
  }
  float offset[2] = {state.Offset(0, c), state.Offset(1, c)};
  if (__builtin_expect(careful, 0)) SubtractLargeMaxima(s, state, offset);
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = Exp2(fmaf(s[i], c, -offset[(i / 2) % 2]));
  // Two sums a row, again for the latency.
  float sum[2][2] = {{state.sum[0], 0.0f}, {state.sum[1], 0.0f}};
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[(i / 2) % 2][i % 2] += s[i];
  state.sum[0] = sum[0][0] + sum[0][1];
  state.sum[1] = sum[1][0] + sum[1][1];
  return moved;
}

// Weights of a tile that all rows see whole, under offsets that stand, without a look at the maxima: adds to
// the sums, and returns whether some row of this warp has weights so large that its offset has to move.
template <int kCount>
__device__ inline bool WeighTile(float (&s)[kCount], RowState& state, float c, const float (&offset)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = Exp2(fmaf(s[i], c, -offset[(i / 2) % 2]));
  bool excess = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Two sums a row, for the latency.
    float sum[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      sum[0] += s[i + 2 * r];
      sum[1] += s[i + 2 * r + 1];
    }
    const float tile = sum[0] + sum[1];
    excess |= tile > kWeightsMax;
    state.sum[r] += tile;
  }
  return __any_sync(0xffffffffu, excess);
}

// Moves offsets up by the largest weight of the tile; scales weights, sums and output. Infinite weights stay:
// the careful pass makes up for them.
template <int kCount, int kOutputs>
__device__ inline void ShiftOffset(float (&s)[kCount], float (&o)[kOutputs], RowState& state, float c,
                                   float (&offset)[2]) {
  float largest[2];
  RowMaxima(s, largest);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool moves = largest[r] > 1.0f && largest[r] < INFINITY;
    if (moves) state.max[r] += __fdividef(__log2f(largest[r]), c);
    const float moved = state.Offset(r, c);
    const float correction = Exp2(offset[r] - moved);
    offset[r] = moved;
    state.sum[r] *= correction;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) s[4 * (i / 2) + 2 * r + i % 2] *= correction;
#pragma unroll
    for (int i = 0; i < kOutputs / 2; ++i) o[4 * (i / 2) + 2 * r + i % 2] *= correction;
  }
}

// Weights as the register operand of the second product.
template <typename Element, int kCount>
__device__ inline void PackWeights(const float (&s)[kCount], uint32_t (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = Pack<Element>(s[2 * i], s[2 * i + 1]);
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_SOFTMAX_H_
