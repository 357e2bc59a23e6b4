// From accumulators to out and lse in global memory.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_

#include <cstdint>

#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/scores.h"
#include "kernels/cuda/flash/sm90/softmax.h"

namespace attend::cuda::sm90 {

inline constexpr float kLn2 = 0.693147180559945309417f;

// What is known of a row at its end, in exponents of 2.
struct RowEnd {
  float common;  // the larger of the row's offset and its sink; -inf: no key seen, and no sink
  float total;   // all weights, the sink's included, under that; NaN where that is -inf
  float factor;  // what accumulators are multiplied with
};

// From a row's maximum times c and its whole sum. sink_log2: the row's logit in exponents of 2, or -inf.
// Without branches, so that two rows' latencies overlap.
__device__ inline RowEnd FinishRow(float offset, float sum, float sink_log2) {
  RowEnd row;
  // The sink may be larger than every score.
  row.common = fmaxf(offset, sink_log2);
  const float shrink = Exp2(offset - row.common);
  row.total = sum * shrink + Exp2(sink_log2 - row.common);
  // No key seen: out is 0.
  row.factor = offset == -INFINITY ? 0.0f : __fdividef(shrink, row.total);
  return row;
}

// The row's log-sum-exp. Where no key but NaN was seen (a maximum passes over those) the sum tells.
__device__ inline float LogSumExp(const RowEnd& row, float offset, float sum, float sink) {
  if (offset == -INFINITY) return sum == 0.0f ? sink : sum;
  return (row.common + __log2f(row.total)) * kLn2;
}

// Four packed pairs of columns of one row in each of four neighbouring threads (thread t holds columns
// 8i + 2t of block i) become eight neighbouring columns in each (thread t: block t).
__device__ inline uint4 TransposeQuad(const uint32_t (&pairs)[4], int t) {
  const bool odd = t & 1;
  const bool upper = t & 2;
  const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? pairs[0] : pairs[1], 1);
  const uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? pairs[2] : pairs[3], 1);
  // Pairs of the even and of the odd thread, of blocks {0, 1}[odd] and {2, 3}[odd].
  const uint32_t even0 = odd ? a : pairs[0], odd0 = odd ? pairs[1] : a;
  const uint32_t even2 = odd ? b : pairs[2], odd2 = odd ? pairs[3] : b;
  const uint32_t c = __shfl_xor_sync(0xffffffffu, upper ? even0 : even2, 2);
  const uint32_t d = __shfl_xor_sync(0xffffffffu, upper ? odd0 : odd2, 2);
  return upper ? make_uint4(c, d, even2, odd2) : make_uint4(even0, odd0, c, d);
}

// Writes 16-bit rows, 64 bytes of a row at a time. out: of this thread's first row; rows: how many of the
// two exist (bit r).
template <typename Element, int kCount>
__device__ inline void StoreHalf(const float (&o)[kCount], const float (&factor)[2], Element* out,
                                 int64_t token_stride, unsigned rows, int columns, int t) {
  static_assert(kCount % 16 == 0);
#pragma unroll
  for (int block = 0; block < kCount / 4; block += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (block + i) + 2 * r;
        pairs[i] = Pack<Element>(o[at] * factor[r], o[at + 1] * factor[r]);
      }
      const uint4 vector = TransposeQuad(pairs, t);
      const int column = 8 * (block + t);
      if ((rows >> r & 1) && column < columns) {
        *reinterpret_cast<uint4*>(out + 8 * r * token_stride + column) = vector;
      }
    }
  }
}

// Writes 16-bit rows by way of shared memory, whole rows at a time. staged: the place of the warpgroup's
// queries, which nothing reads any more; each warp uses that of its own 16 rows. out: of the warp's first
// row, of which `rows` exist.
template <typename T, int kCount>
__device__ inline void StoreStaged(const float (&o)[kCount], const float (&factor)[2], uint8_t* staged,
                                   typename T::Element* out, int64_t token_stride, int rows, int columns,
                                   int thread) {
  const int first_row = thread / 32 * 16;
  const int lane = thread % 32;
#pragma unroll
  for (int block = 0; block < kCount / 4; block += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * block + 2 * i;
      pairs[i] = Pack<typename T::Element>(o[at] * factor[i % 2], o[at + 1] * factor[i % 2]);
    }
    StoreMatrices(staged + TileOffset<T, T::kQueryBlockBytes>(first_row + lane % 16, 8 * (block + lane / 16)),
                  pairs);
  }
  __syncwarp();
  // 16 bytes a lane, of as many rows at once as lanes suffice for.
  constexpr int kLanes = T::kHeadDim / 8;  // of a row
  constexpr int kRowsAtOnce = 32 / kLanes;
  static_assert((kRowsAtOnce & (kRowsAtOnce - 1)) == 0);
  constexpr int kSteps = 16 / kRowsAtOnce;
  // At head_dim 96 eight lanes have no row of their own, and read another's for nothing.
  const int row = min(lane / kLanes, kRowsAtOnce - 1);
  const int column = lane % kLanes * 8;
  const uint32_t from = TileOffset<T, T::kQueryBlockBytes>(first_row + row, column);
  uint4 vectors[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    // The rows of a step and of a lane share no bits, so that their swizzles combine by xor.
    const uint32_t step = i * kRowsAtOnce * T::kRowBytes;
    vectors[i] = *reinterpret_cast<const uint4*>(staged + ((from ^ Swizzled<T>(step)) + step));
  }
  typename T::Element* to = out + row * token_stride + column;
  const int row_end = lane < kRowsAtOnce * kLanes && column < columns ? rows - row : 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i * kRowsAtOnce < row_end) StoreVector(to, vectors[i]);
    to += kRowsAtOnce * token_stride;
  }
  // The copy engine is the next to write there.
  SharedWritesToAsyncProxy();
}

template <int kCount>
__device__ inline void StoreFloat(const float (&o)[kCount], const float (&factor)[2], float* out,
                                  int64_t token_stride, unsigned rows, int columns, int t) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    if (8 * i >= columns) break;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 pair = make_float2(o[4 * i + 2 * r] * factor[r], o[4 * i + 2 * r + 1] * factor[r]);
      if (rows >> r & 1) *reinterpret_cast<float2*>(out + 8 * r * token_stride + 8 * i + 2 * t) = pair;
    }
  }
}

// Whether some accumulator is not finite.
template <int kCount>
__device__ inline bool AnyNotFinite(const float (&o)[kCount]) {
  float zero[4] = {};  // NaN once something is not
#pragma unroll
  for (int i = 0; i < kCount; ++i) zero[i % 4] = fmaf(o[i], 0.0f, zero[i % 4]);
  return zero[0] + zero[1] + zero[2] + zero[3] != 0.0f;
}

// The thread's two rows of one work item of one warpgroup. row: the thread's first within the sequence;
// staged: the place of the warpgroup's queries, which nothing reads any more; thread: within the warpgroup.
template <typename T, int kCount>
__device__ inline void StoreItem(const Shape& shape, const Group& g, int batch, int head, int row,
                                 const float (&o)[kCount], const RowState& state, float c, uint8_t* staged,
                                 int thread) {
  const float sink = g.sinks == nullptr ? -INFINITY : __ldg(g.sinks + batch * g.sinks_batch_stride + head);
  const float offset[2] = {state.max[0] * c, state.max[1] * c};
  const float sum[2] = {QuadSum(state.sum[0]), QuadSum(state.sum[1])};
  const RowEnd end[2] = {FinishRow(offset[0], sum[0], sink * kLog2E),
                         FinishRow(offset[1], sum[1], sink * kLog2E)};
  const float factor[2] = {end[0].factor, end[1].factor};
  const int t = thread % 4;
  const unsigned rows = (row < g.q_len ? 1u : 0u) | (row + 8 < g.q_len ? 2u : 0u);
  if (g.lse != nullptr && t == 0) {
    float* lse = g.lse + batch * g.lse_batch_stride + head * g.lse_head_stride + row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows >> r & 1) lse[8 * r] = LogSumExp(end[r], offset[r], sum[r], sink);
    }
  }
  const int64_t head_begin = batch * g.out_batch_stride + head * g.out_head_stride;
  const int64_t first = head_begin + row * g.out_token_stride;
  using Element = typename T::Element;
  if (shape.partial) {
    StoreFloat(o, factor, static_cast<float*>(g.out) + first, g.out_token_stride, rows, shape.v_head_dim, t);
  } else if constexpr (T::kStaged) {
    const int first_row = row - thread % 32 / 4;
    StoreStaged<T>(o, factor, staged,
                   static_cast<Element*>(g.out) + head_begin + first_row * g.out_token_stride,
                   g.out_token_stride, g.q_len - first_row, shape.v_head_dim, thread);
  } else {
    StoreHalf(o, factor, static_cast<Element*>(g.out) + first, g.out_token_stride, rows, shape.v_head_dim, t);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_
