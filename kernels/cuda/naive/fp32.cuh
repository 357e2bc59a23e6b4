// The two matrix products of NAIVE and ONLINE in fp32, on the split tiles and with the products of
// flash/fp32.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_
#define ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_

#include "kernels/cuda/flash/fp32/products.cuh"
#include "kernels/cuda/naive/fp32.h"
#include "kernels/cuda/naive/plain.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::naive {

using flash_fp32::Block;
using flash_fp32::Scores;
using flash_fp32::Shared;
using flash_fp32::Tile;
using flash_fp32::WarpState;

// Stores a tile of scores.
template <typename T>
__device__ inline void StoreScores(const Block& block, int key0, const Scores<T>& s, float* head_scores) {
  const Problem& p = *block.problem;
  const int lane = threadIdx.x % 32;
  const int64_t stride = ScoreStride(p);
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) {
    const int64_t row = block.row0 + block.warp_row + r * 8 + lane / 4;
    if (row >= p.q_len) continue;
    float* to = head_scores + row * stride;
#pragma unroll
    for (int n = 0; n < T::kKeys / 8; ++n) {
      const int key = key0 + n * 8 + lane % 4 * 2;
      const float(&two)[4] = s[r / 2][n];
      if (key < stride)
        *reinterpret_cast<float2*>(to + key) = make_float2(two[r % 2 * 2], two[r % 2 * 2 + 1]);
    }
  }
}

// Infinities, and sums with them, do not survive the split.
template <typename T>
__device__ inline void MendScores(const Block& block, int key0, Scores<T>& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < T::kGroups * T::kKeys / 2; ++i) {
    const int g = i / (T::kKeys / 2), n = i / 4 % (T::kKeys / 8), j = i % 4;
    float& x = s[g][n][j];
    if (isfinite(x)) continue;
    const int64_t row = block.row0 + block.warp_row + g * 16 + j / 2 * 8 + lane / 4;
    const int64_t key = key0 + n * 8 + lane % 4 * 2 + j % 2;
    if (row < block.problem->q_len && key < block.problem->kv_len) {
      x = PlainDot<float>(*block.problem, block.head, row, key, block.head_dim);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, 2)
    Fp32ScoresKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t head_dim) {
  using T = Tile<kDim>;
  using S = Shared<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t strip_keys = StripKeys(p.kv_len);
  const Place place =
      PlaceOf(p, blockIdx.x - item.block_begin, T::kRows, (p.kv_len + strip_keys - 1) / strip_keys);
  Block block = flash_fp32::PlaceBlock<T>(p, place.head, place.row_tile, 1.0f);
  block.head_dim = head_dim;
  const int first = static_cast<int>(place.strip * strip_keys / T::kKeys);
  const int64_t key_tiles = (p.kv_len + T::kKeys - 1) / T::kKeys;
  const int last = static_cast<int>(min(first + strip_keys / T::kKeys, key_tiles));
  const char* tile_bytes = m.tiles + item.tile_offset + (block.kv_head * key_tiles + first) * T::kBytes;
  float* head_scores = m.scores + item.offset + block.head * p.q_len * ScoreStride(p);
  const KeyBounds bounds = BoundsOf(p, block.row0, min(int64_t{block.row0} + T::kRows, p.q_len));

  int* top_exponent = reinterpret_cast<int*>(shared + S::kTopExponent);
  flash_fp32::CopyTile(shared + S::kKeys, tile_bytes, T::kKeyBytes, T::kThreads);
  flash::CommitCopies();
  if (threadIdx.x == 0) *top_exponent = 0;
  __syncthreads();
  flash_fp32::LoadQueries<T>(block, shared);
  __syncthreads();
  block.score_bound = flash_fp32::ScoreBound(p, kDim, *top_exponent);
  for (int tile = first; tile < last; ++tile) {
    const int key0 = tile * T::kKeys;
    Scores<T> s = {};
    flash::WaitCopies<0>();
    __syncthreads();
    const float key_max = reinterpret_cast<const float*>(shared + S::kKeys + 2 * T::kPartBytes)[T::kKeys];
    const bool visible = key0 < bounds.end && key0 + T::kKeys > bounds.begin;
    if (visible && block.score_bound * key_max > flash_fp32::kScoreBoundMax) {
      flash_fp32::MultiplyWideKeys<T>(block, key0, s);
    } else if (visible) {
      flash_fp32::MultiplyKeys<T>(block, shared, s);
    }
    __syncthreads();
    tile_bytes += T::kBytes;
    if (tile + 1 < last) flash_fp32::CopyTile(shared + S::kKeys, tile_bytes, T::kKeyBytes, T::kThreads);
    flash::CommitCopies();
    MendScores<T>(block, key0, s);
    flash_fp32::Modify<T>(block, key0, s);
    StoreScores<T>(block, key0, s, head_scores);
  }
}

template <int kDim>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, 2)
    Fp32WeightedSumKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t v_head_dim,
                          bool form_weights) {
  using T = Tile<kDim>;
  extern __shared__ __align__(128) unsigned char shared[];  // two tiles of v
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const Place place = PlaceOf(p, blockIdx.x - item.block_begin, T::kRows, 1);
  Block block = flash_fp32::PlaceBlock<T>(p, place.head, place.row_tile, 1.0f);
  block.v_head_dim = v_head_dim;
  const int lane = threadIdx.x % 32;
  const int64_t stride = ScoreStride(p);
  const bool all_weights = form_weights && p.weights != nullptr && p.weight_rows == nullptr;
  RowWeight weight[T::kGroups * 2];
  const float* scores[T::kGroups * 2];
  float* weights[T::kGroups * 2];
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) {
    const int64_t row = block.row0 + block.warp_row + r * 8 + lane / 4;
    const int64_t index = block.head * p.q_len + row;
    const bool exists = row < p.q_len;
    if (exists) weight[r] = RowWeight(m, item.row_offset + index, form_weights);
    scores[r] = exists ? m.scores + item.offset + index * stride : nullptr;
    weights[r] = exists && all_weights
                     ? p.weights + block.head * p.weights_head_stride + row * p.weights_row_stride
                     : nullptr;
  }
  // Keys that no row of the block sees have weights of 0, which matter only where they must be written.
  KeyBounds bounds = BoundsOf(p, block.row0, min(int64_t{block.row0} + T::kRows, p.q_len));
  if (all_weights) bounds = {0, p.kv_len};
  const int first = static_cast<int>(bounds.begin / T::kKeys);
  const int last = static_cast<int>((bounds.end + T::kKeys - 1) / T::kKeys);
  const int64_t key_tiles = (p.kv_len + T::kKeys - 1) / T::kKeys;
  const char* tile_bytes =
      m.tiles + item.tile_offset + (block.kv_head * key_tiles + first) * T::kBytes + T::kKeyBytes;
  WarpState<T> state;
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) state.correction[r / 2][r % 2] = 1.0f;
  if (first < last) flash_fp32::CopyTile(shared, tile_bytes, T::kValueBytes, T::kThreads);
  flash::CommitCopies();
  for (int tile = first; tile < last; ++tile) {
    const int key0 = tile * T::kKeys;
    Scores<T> w;
#pragma unroll
    for (int i = 0; i < T::kGroups * T::kKeys / 4; ++i) {
      const int r = i % (T::kGroups * 2), n = i / (T::kGroups * 2);
      const float2 two =
          LoadWeights(scores[r], key0 + n * 8 + lane % 4 * 2, stride, p.kv_len, weight[r], weights[r]);
      w[r / 2][n][r % 2 * 2] = two.x;
      w[r / 2][n][r % 2 * 2 + 1] = two.y;
    }
    flash::WaitCopies<0>();
    __syncthreads();  // this tile is there, and nobody reads the last one any more
    unsigned char* values = shared + (tile - first) % 2 * T::kValueBytes;
    unsigned char* next = shared + (tile + 1 - first) % 2 * T::kValueBytes;
    tile_bytes += T::kBytes;
    if (tile + 1 < last) flash_fp32::CopyTile(next, tile_bytes, T::kValueBytes, T::kThreads);
    flash::CommitCopies();
    if (reinterpret_cast<const float*>(values + 2 * T::kPartBytes)[kDim] != 0.0f) {
      flash_fp32::MultiplyWideValues<T>(block, key0, w, state);
    } else {
      flash_fp32::MultiplyValues<T>(block, values, w, state);
    }
  }
#pragma unroll
  for (int i = 0; i < T::kGroups * T::kDim / 2; ++i) {
    const int g = i / (T::kDim / 2), n = i / 4 % (T::kDim / 8), j = i % 4, r = g * 2 + j / 2;
    const int64_t row = block.row0 + block.warp_row + r * 8 + lane / 4;
    const int column = n * 8 + lane % 4 * 2 + j % 2;
    if (row >= p.q_len || column >= v_head_dim) continue;
    float x = state.out[g][n][j];
    if (!isfinite(x)) x = PlainSum<float>(p, block.head, row, column, scores[r], weight[r]);
    static_cast<float*>(p.out)[row * p.out_strides.token + block.head * p.out_strides.head + column] = x;
  }
}

template <int kDim>
absl::Status EnqueueFp32Scores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream) {
  using T = Tile<kDim>;
  constexpr int kBytes = Shared<T>::kBytes;
  ATTEND_CUDA_RETURN_IF_ERROR(
      cudaFuncSetAttribute(Fp32ScoresKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  Fp32ScoresKernel<kDim>
      <<<static_cast<unsigned>(work.blocks), T::kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(
          work.list, m, launch.head_dim);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

template <int kDim>
absl::Status EnqueueFp32WeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                    const Matrices& m, Stream stream) {
  using T = Tile<kDim>;
  constexpr int kBytes = 2 * T::kValueBytes;
  ATTEND_CUDA_RETURN_IF_ERROR(
      cudaFuncSetAttribute(Fp32WeightedSumKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  Fp32WeightedSumKernel<kDim>
      <<<static_cast<unsigned>(work.blocks), T::kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(
          work.list, m, launch.v_head_dim, form_weights);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_
