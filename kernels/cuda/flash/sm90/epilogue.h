// From accumulators to out and lse in global memory.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_

#include <cstdint>

#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/scores.h"
#include "kernels/cuda/flash/sm90/softmax.h"

namespace attend::cuda::sm90 {

inline constexpr float kLn2 = 0.693147180559945309417f;

// What a row's accumulators are multiplied with, and its log-sum-exp.
struct RowResult {
  float factor;
  float lse;
};

// From a row's maximum times c and its whole sum. sink: the row's logit, or -inf.
__device__ inline RowResult FinishRow(float offset, float sum, float sink) {
  // No key seen: out is 0. (Or none but NaN, which a maximum passes over, and the sum tells.)
  if (offset == -INFINITY) return {0.0f, sum == 0.0f ? sink : sum};
  const float sink_log2 = sink * kLog2E;
  // The sink may be larger than every score: the common offset is the larger of both.
  const float common = fmaxf(offset, sink_log2);
  const float shrink = Exp2(offset - common);
  const float total = sum * shrink + Exp2(sink_log2 - common);
  return {__fdividef(shrink, total), (common + __log2f(total)) * kLn2};
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
  constexpr int kChunks = T::kHeadDim / 8;  // of 16 bytes, in a row
#pragma unroll
  for (int i = 0; i < kChunks / 2; ++i) {
    const int row = (32 * i + lane) / kChunks;
    const int column = (32 * i + lane) % kChunks * 8;
    const uint4 vector =
        *reinterpret_cast<const uint4*>(staged + TileOffset<T, T::kQueryBlockBytes>(first_row + row, column));
    if (row < rows && column < columns) {
      *reinterpret_cast<uint4*>(out + row * token_stride + column) = vector;
    }
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
  const int t = thread % 4;
  unsigned rows = 0;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowResult result = FinishRow(state.max[r] * c, QuadSum(state.sum[r]), sink);
    factor[r] = result.factor;
    if (row + 8 * r >= g.q_len) continue;
    rows |= 1u << r;
    if (g.lse != nullptr && t == 0) {
      g.lse[batch * g.lse_batch_stride + head * g.lse_head_stride + row + 8 * r] = result.lse;
    }
  }
  const int64_t head_begin = batch * g.out_batch_stride + head * g.out_head_stride;
  const int64_t offset = head_begin + row * g.out_token_stride;
  using Element = typename T::Element;
  if (shape.partial) {
    StoreFloat(o, factor, static_cast<float*>(g.out) + offset, g.out_token_stride, rows, shape.v_head_dim, t);
  } else if constexpr (T::kStaged) {
    const int first_row = row - thread % 32 / 4;
    StoreStaged<T>(o, factor, staged,
                   static_cast<Element*>(g.out) + head_begin + first_row * g.out_token_stride,
                   g.out_token_stride, g.q_len - first_row, shape.v_head_dim, thread);
  } else {
    StoreHalf(o, factor, static_cast<Element*>(g.out) + offset, g.out_token_stride, rows, shape.v_head_dim,
              t);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_EPILOGUE_H_
