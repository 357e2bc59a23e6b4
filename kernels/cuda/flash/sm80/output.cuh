// From a CTA's accumulators to rows of out and lse in global memory.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_OUTPUT_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_OUTPUT_CUH_

#include <cstdint>

#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/flash/sm80/load.cuh"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/flash/sm80/scores.cuh"
#include "kernels/cuda/flash/sm80/tile.h"

namespace attend::cuda::flash {

template <typename Tile>
using OutFragments = float[Tile::kRowTiles][Tile::kHeadDim / 8][4];

// Place of a column in a staged fp32 row: groups of 8 columns are exchanged by row, so that the eight rows
// of a fragment lie in different banks.
template <int kHeadDim>
__device__ inline int StagedColumn(int row, int column) {
  return column ^ ((kHeadDim == 96 ? row & 3 : row & 7) << 3);
}

// What a row's accumulators of one key warp are multiplied with, and the row's lse. Scores times `unit` are
// natural; sinks enter here.
struct RowScale {
  float scale;
  float lse;
};

// max and sum over all keys of the row that this CTA has seen; warp_max is the maximum that this warp's
// accumulators are relative to. A sum of 0 means that the row saw no key.
__device__ inline RowScale ScaleOf(float warp_max, float max, float sum, float unit, const float* sink) {
  const bool empty = sum == 0.0f;
  const float natural = max == NegativeInfinity() ? 0.0f : max * unit;
  if (sink == nullptr) {
    if (empty) return {0.0f, NegativeInfinity()};
    const float own = warp_max == max ? 1.0f : Exp2((warp_max - max) * unit * kLog2E);
    return {own / sum, natural + logf(sum)};
  }
  if (empty) return {0.0f, *sink};
  const float top = fmaxf(natural, *sink);
  const float total = sum * Exp2((natural - top) * kLog2E) + Exp2((*sink - top) * kLog2E);
  const float own = warp_max == NegativeInfinity() ? 0.0f : Exp2((warp_max * unit - top) * kLog2E);
  return {own / total, top + logf(total)};
}

// Shares the key warps' softmax states, and gives each thread the factors of its rows; writes row_lse
// and the states of a split.
template <typename Tile>
__device__ inline void FinishSoftmax(Softmax<Tile>& state, float (&scale)[2 * Tile::kRowTiles],
                                     Shared<Tile>& shared, const Lane<Tile>& at) {
  const FlashProblem& p = shared.problem;
  const float unit = p.unit;
  const bool split = p.splits > 1;  // sinks are left to the kernel that combines splits
#pragma unroll
  for (int r = 0; r < 2 * Tile::kRowTiles; ++r) {
    state.sum[r] = QuadSum(state.sum[r]);
    if (Tile::kKeyWarps > 1 && at.lane % 4 == 0) {
      shared.warp_max[at.key_warp][at.Row(r / 2, r % 2)] = state.max[r];
      shared.warp_sum[at.key_warp][at.Row(r / 2, r % 2)] = state.sum[r];
    }
  }
  if (Tile::kKeyWarps > 1) __syncthreads();
#pragma unroll
  for (int r = 0; r < 2 * Tile::kRowTiles; ++r) {
    const int row = at.Row(r / 2, r % 2);
    float max = state.max[r], sum = state.sum[r];
    if constexpr (Tile::kKeyWarps > 1) {
      for (int w = 0; w < Tile::kKeyWarps; ++w) max = fmaxf(max, shared.warp_max[w][row]);
      sum = 0.0f;
      for (int w = 0; w < Tile::kKeyWarps; ++w) {
        const float part = shared.warp_max[w][row];
        const float weight = part == max ? 1.0f : Exp2((part - max) * unit * kLog2E);
        sum += shared.warp_sum[w][row] * weight;
      }
    }
    const bool exists = shared.row_token[row] >= 0;
    const bool sink = p.sinks != nullptr && exists && !split;
    const RowScale f = ScaleOf(state.max[r], max, sum, unit, sink ? p.sinks + shared.row_head[row] : nullptr);
    scale[r] = f.scale;
    if (at.lane % 4 != 0 || at.key_warp != 0) continue;
    shared.row_lse[row] = split ? sum : f.lse;
    if (split && exists) p.split_states[shared.work.split_row + row] = {max, sum};
  }
}

// Puts scaled accumulators into the ring, one [kRows][kHeadDim] array for each key warp. seen: 0 where the
// row saw no key of this warp; it is 0 then, also where a masked NaN of V has reached its accumulators.
template <typename Tile>
__device__ inline void StageOut(const OutFragments<Tile>& out, const float (&scale)[2 * Tile::kRowTiles],
                                const float (&seen)[2 * Tile::kRowTiles], Shared<Tile>& shared,
                                const Lane<Tile>& at) {
  float* staged = reinterpret_cast<float*>(shared.ring) + at.key_warp * Tile::kRows * Tile::kHeadDim;
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.Row(rt, half);
      const float f = scale[2 * rt + half];
      const bool nothing = seen[2 * rt + half] == 0.0f;
#pragma unroll
      for (int n = 0; n < Tile::kHeadDim / 8; ++n) {
        const int column = StagedColumn<Tile::kHeadDim>(row, n * 8 + at.lane % 4 * 2);
        const float2 pair = {out[rt][n][2 * half] * f, out[rt][n][2 * half + 1] * f};
        *reinterpret_cast<float2*>(staged + row * Tile::kHeadDim + column) = nothing ? float2{0, 0} : pair;
      }
    }
  }
}

// Eight staged columns of a row, summed over the key warps in order.
template <typename Tile>
__device__ inline void StagedChunk(float (&x)[8], const Shared<Tile>& shared, int row, int chunk) {
  const float* staged = reinterpret_cast<const float*>(shared.ring) + row * Tile::kHeadDim +
                        StagedColumn<Tile::kHeadDim>(row, chunk * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = staged[i];
#pragma unroll
  for (int w = 1; w < Tile::kKeyWarps; ++w) {
    staged += Tile::kRows * Tile::kHeadDim;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += staged[i];
  }
}

__device__ inline void StoreChunk(float* to, const float (&x)[8], bool vectors) {
  if (vectors) {
    reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
    reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = x[i];
}
template <typename T>
__device__ inline void StoreChunk(T* to, const float (&x)[8], bool vectors) {
  if (vectors) {
    *reinterpret_cast<uint4*>(to) = {Element<T>::Pack(x[0], x[1]), Element<T>::Pack(x[2], x[3]),
                                     Element<T>::Pack(x[4], x[5]), Element<T>::Pack(x[6], x[7])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = T(x[i]);
}

__device__ inline float LoadOut(const float* from) { return *from; }
template <typename T>
__device__ inline float LoadOut(const T* from) {
  return Element<T>::ToFloat(*from);
}

// Where a row of this CTA goes: out of the problem, or a partial state of its split.
template <typename O>
struct OutRow {
  O* out;
  float* lse;  // null: not wanted
  bool vectors;
};

// Writes (plain and finite passes) or amends (plus and minus passes) the rows, and says whether this thread
// has seen a NaN whose cause is not in the row's own scores: V holds something that is not finite.
template <typename Tile, typename O, typename RowOf>
__device__ inline bool WriteRows(const Shared<Tile>& shared, Pass pass, RowOf row_of) {
  constexpr int kChunks = Tile::kHeadDim / 8;
  bool nan = false;
  for (int index = threadIdx.x; index < Tile::kRows * kChunks; index += Tile::kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    if (shared.row_token[row] < 0 || chunk * 8 >= shared.problem.v.dim) continue;
    const OutRow<O> to = row_of(row);
    float x[8];
    StagedChunk(x, shared, row, chunk);
    if (pass == Pass::kPlus || pass == Pass::kMinus) {
      const float infinity = pass == Pass::kPlus ? -NegativeInfinity() : NegativeInfinity();
      for (int i = 0; i < 8; ++i) {
        O* element = to.out + chunk * 8 + i;
        if (x[i] > 0.0f) *element = O(LoadOut(element) + infinity);
      }
      continue;
    }
    const float lse = shared.row_lse[row];
    StoreChunk(to.out + chunk * 8, x, to.vectors);
    if (chunk == 0 && to.lse != nullptr) *to.lse = lse;
    if (lse == lse) {
#pragma unroll
      for (int i = 0; i < 8; ++i) nan |= x[i] != x[i];
    }
  }
  return nan;
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_OUTPUT_CUH_
