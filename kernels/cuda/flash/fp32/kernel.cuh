// The second kernel: flash attention over the tiles that the first one split (tile.h).
//
// A block of 4 warps owns 128 query rows of a head, 32 to a warp (64 and 16 where head_dim passes 64, or
// where the launch has few rows). q is split into shared memory once. Then, tile by tile of 64 keys: scores
// by three fp16 products, the online softmax in fp32 registers, the weights split again, three products with
// v, and the running output corrected and added to in plain fp32: accumulators of tensor cores round toward
// zero, and never hold more than one tile. The next tile of k travels during the softmax and the product with
// v, the next of v during the next scores.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_KERNEL_CUH_

#include <algorithm>

#include "kernels/cuda/exact_row.cuh"
#include "kernels/cuda/flash/fp32/flash_fp32.h"
#include "kernels/cuda/flash/fp32/products.cuh"
#include "kernels/cuda/flash/fp32/tile.h"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::flash_fp32 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ inline float Safe(float max) { return max == NegativeInfinity() ? 0.0f : max; }

// The online softmax: scores become weights relative to the new running maximum.
template <typename T>
__device__ inline void Softmax(Scores<T>& s, WarpState<T>& state) {
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) {
    const int g = r / 2, half = r % 2;
    float top = state.max[g][half];
#pragma unroll
    for (int n = 0; n < T::kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[g][n][half * 2], s[g][n][half * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
    const float base = Safe(top);
    const float correction = flash::Exp2(state.max[g][half] - base);
    state.max[g][half] = top;
    state.correction[g][half] = correction;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < T::kKeys / 8; ++n) {
#pragma unroll
      for (int j = half * 2; j < half * 2 + 2; ++j) {
        s[g][n][j] = flash::Exp2(s[g][n][j] - base);
        sum += s[g][n][j];
      }
    }
    state.sum[g][half] = fmaf(state.sum[g][half], correction, sum);
  }
}

// Adds the sink, divides, writes out and lse, and marks rows that did not come out finite.
template <typename T>
__device__ inline void Finish(const Block& block, bool sinks, int* redo, WarpState<T>& state) {
  const Problem& p = *block.problem;
  const int lane = threadIdx.x % 32;
  const bool pairs =
      reinterpret_cast<uint64_t>(p.out) % 8 == 0 && (p.out_strides.token | p.out_strides.head) % 2 == 0;
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) {
    const int g = r / 2, half = r % 2;
    const int warp_row = block.warp_row + r * 8 + lane / 4;
    const int64_t row = block.row0 + warp_row;
    float sum = state.sum[g][half], max = state.max[g][half], factor = 1.0f;
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    if (row >= p.q_len) continue;
    if (sinks) {
      const float sink = p.sinks[block.head] * kLog2E;
      const float top = fmaxf(max, sink);
      factor = flash::Exp2(max - Safe(top));
      sum = sum * factor + flash::Exp2(sink - Safe(top));
      max = top;
    }
    factor = sum == 0.0f ? 0.0f : factor / sum;
    bool finite = isfinite(sum);
    float* to = static_cast<float*>(p.out) + row * p.out_strides.token + block.head * p.out_strides.head;
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column >= block.v_head_dim) break;
      const float x = state.out[g][n][half * 2] * factor, y = state.out[g][n][half * 2 + 1] * factor;
      finite &= isfinite(x) && isfinite(y);
      if (pairs) {
        *reinterpret_cast<float2*>(to + column) = make_float2(x, y);
      } else {
        to[column] = x;
        to[column + 1] = y;
      }
    }
    if (!finite) redo[warp_row] = 1;
    if (p.lse != nullptr && lane % 4 == 0) {
      p.lse[block.head * p.lse_head_stride + row] =
          sum == 0.0f ? NegativeInfinity() : (Safe(max) + log2f(sum)) * kLn2;
    }
  }
}

// Causal rows that see most keys come first, so that the short ones fill the end.
template <typename T>
__device__ inline Block MakeBlock(const Problem& p, int64_t index) {
  const int64_t row_tiles = (p.q_len + T::kRows - 1) / T::kRows;
  if (p.causal == Causal::kNone) {
    return PlaceBlock<T>(p, static_cast<int32_t>(index / row_tiles), index % row_tiles, kLog2E);
  }
  return PlaceBlock<T>(p, static_cast<int32_t>(index % p.q_heads), row_tiles - 1 - index / p.q_heads, kLog2E);
}

// Shared memory of a block, in bytes from its start: q, then these.
template <typename T>
struct Shared {
  static constexpr int kKeys = Queries<T>::kBytes;
  static constexpr int kValues = kKeys + T::kKeyBytes;
  static constexpr int kRedo = kValues + T::kValueBytes;  // int[kRows]: compute this row again
  static constexpr int kBytes = kRedo + T::kRows * 4;
  static_assert(kBytes <= kSharedBytesMax);
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 2)
    FlashKernel(const __grid_constant__ ProblemList list, const char* tiles, int32_t head_dim,
                int32_t v_head_dim, bool partial) {
  using S = Shared<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  if (list.items != nullptr) WaitForLaunchBefore();  // which may have copied the list
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  Block block = MakeBlock<T>(p, blockIdx.x - item.block_begin);
  block.head_dim = head_dim;
  block.v_head_dim = v_head_dim;
  const KeyBounds bounds = BoundsOf(p, block.row0, min(int64_t{block.row0} + T::kRows, p.q_len));
  const int first = static_cast<int>(bounds.begin / T::kKeys);
  const int last = static_cast<int>((bounds.end + T::kKeys - 1) / T::kKeys);
  const int64_t key_tiles = (p.kv_len + T::kKeys - 1) / T::kKeys;
  const char* k_tile = tiles + item.offset + (block.kv_head * key_tiles + first) * T::kBytes;

  int* redo = reinterpret_cast<int*>(shared + S::kRedo);
  for (int i = threadIdx.x; i < T::kRows; i += T::kThreads) redo[i] = 0;
  ScoreBounds<T> score_bounds;
  LoadQueries<T>(block, shared, score_bounds);
  WaitForLaunchBefore();  // k and v are split
  if (first < last) CopyTile(shared + S::kKeys, k_tile, T::kKeyBytes, T::kThreads);
  flash::CommitCopies();
  if (first < last) CopyTile(shared + S::kValues, k_tile + T::kKeyBytes, T::kValueBytes, T::kThreads);
  flash::CommitCopies();

  WarpState<T> state;
#pragma unroll
  for (int i = 0; i < T::kGroups * 2; ++i) state.max[i / 2][i % 2] = NegativeInfinity();
  for (int tile = first; tile < last; ++tile, k_tile += T::kBytes) {
    const int key0 = tile * T::kKeys;
    const bool more = tile + 1 < last;
    Scores<T> s;
    flash::WaitCopies<1>();
    __syncthreads();
    ScoreTile<T>(block, shared, shared + S::kKeys, key0, score_bounds, s);
    __syncthreads();
    if (more) CopyTile(shared + S::kKeys, k_tile + T::kBytes, T::kKeyBytes, T::kThreads);
    flash::CommitCopies();
    Modify<T>(block, key0, s);
    Softmax<T>(s, state);
    flash::WaitCopies<1>();
    __syncthreads();
    const float wide = reinterpret_cast<const float*>(shared + S::kValues + 2 * T::kPartBytes)[T::kDim];
    if (wide != 0.0f) {
      MultiplyWideValues<T>(block, key0, s, state);
    } else {
      MultiplyValues<T>(block, shared + S::kValues, s, state);
    }
    __syncthreads();
    if (more) {
      CopyTile(shared + S::kValues, k_tile + T::kBytes + T::kKeyBytes, T::kValueBytes, T::kThreads);
    }
    flash::CommitCopies();
  }

  const bool sinks = p.sinks != nullptr && !partial;
  Finish<T>(block, sinks, redo, state);
  __syncthreads();
  for (int i = block.warp_row; i < block.warp_row + 16 * T::kGroups; ++i) {
    if (redo[i] == 0) continue;
    ExactRow<float>(p, block.head, block.row0 + i, head_dim, v_head_dim, sinks, /*out_is_fp32=*/true);
  }
}

template <int kDim, int kGroups>
absl::Status EnqueueFlash(const Launch& launch, const ProblemList& list, int64_t blocks, const char* tiles,
                          Stream stream) {
  using T = Tile<kDim, kGroups>;
  constexpr int kBytes = Shared<T>::kBytes;
  return LaunchEarly(FlashKernel<T>, blocks, T::kThreads, kBytes, stream, list, tiles, launch.head_dim,
                     launch.v_head_dim, launch.partial);
}

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_KERNEL_CUH_
