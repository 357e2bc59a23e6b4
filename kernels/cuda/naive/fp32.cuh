// The two matrix products of NAIVE and ONLINE in fp32, on the split tiles and with the products of
// flash/fp32.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_
#define ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_

#include "kernels/cuda/flash/fp32/products.cuh"
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/naive/fp32.h"
#include "kernels/cuda/naive/plain.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::naive {

using flash_fp32::Block;
using flash_fp32::Queries;
using flash_fp32::ScoreBounds;
using flash_fp32::Scores;
using flash_fp32::WarpState;

// Blocks of few rows: several on a multiprocessor wait for memory at the same time.
template <int kDim>
using Tile = flash_fp32::Tile<kDim, 1>;
template <int kDim>
constexpr int kScoreBlocks = kDim <= 64 ? 3 : 2;
constexpr int kSumBlocks = 2;

__device__ inline void Exchange(unsigned char*& a, unsigned char*& b) {
  unsigned char* was = a;
  a = b;
  b = was;
}

// fp32 tiles of scores in shared memory, [rows][T::kKeys]: the place of a 16-byte chunk, in floats. What a
// warp writes or reads at a time, by fragments or by rows, lies in different banks.
template <typename T>
__device__ inline int FloatChunk(int row, int chunk) {
  const int pattern = T::kKeys == 64 ? row & 3 : row >> 1 & 1;
  return (row * (T::kKeys / 4) + (chunk ^ pattern << 1)) * 4;
}
// The place of a thread's columns 8n + 2t and 8n + 2t + 1.
template <typename T>
__device__ inline int FloatPair(int row, int n) {
  return FloatChunk<T>(row, n * 2 + threadIdx.x % 4 / 2) + threadIdx.x % 2 * 2;
}

// Stores a tile of scores by whole rows, through `staged`, which is the warp's.
template <typename T>
__device__ inline void StoreScores(const Block& block, int key0, const Scores<T>& s, float* staged,
                                   float* head_scores) {
  constexpr int kChunks = T::kKeys / 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < T::kKeys / 4; ++i) {
    const int n = i / 2, half = i % 2;
    *reinterpret_cast<float2*>(staged + FloatPair<T>(half * 8 + lane / 4, n)) =
        make_float2(s[0][n][half * 2], s[0][n][half * 2 + 1]);
  }
  __syncwarp();
  const int64_t stride = ScoreStride(*block.problem);
  const int rows = static_cast<int>(min(block.problem->q_len - block.row0 - block.warp_row, int64_t{16}));
  float* to = head_scores + (block.row0 + block.warp_row) * stride + key0;
#pragma unroll
  for (int i = 0; i < 16 * kChunks; i += 32) {
    const int row = (i + lane) / kChunks, chunk = (i + lane) % kChunks;
    if (row >= rows || key0 + chunk * 4 >= stride) continue;
    *reinterpret_cast<float4*>(to + row * stride + chunk * 4) =
        *reinterpret_cast<const float4*>(staged + FloatChunk<T>(row, chunk));
  }
}

template <typename T>
__device__ inline bool AllFinite(const Scores<T>& s) {
  float sum = 0.0f;  // of zeros, or NaN
#pragma unroll
  for (int i = 0; i < T::kGroups * T::kKeys / 2; ++i) {
    sum = fmaf(s[i / (T::kKeys / 2)][i / 4 % (T::kKeys / 8)][i % 4], 0.0f, sum);
  }
  return sum == 0.0f;
}

// Infinities, and sums with them, do not survive the split.
template <typename T>
__device__ inline void MendScores(const Block& block, int key0, Scores<T>& s) {
  if (AllFinite<T>(s)) return;
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

// Shared memory: q, then two tiles of k.
template <int kDim>
constexpr int kScoreSharedBytes = Queries<Tile<kDim>>::kBytes + 2 * Tile<kDim>::kKeyBytes;

template <int kDim>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, kScoreBlocks<kDim>)
    Fp32ScoresKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t head_dim) {
  using T = Tile<kDim>;
  static_assert(T::kRows * T::kKeys * 4 <= T::kKeyBytes);
  extern __shared__ __align__(128) unsigned char shared[];
  AllowNextLaunch();
  WaitForLaunchBefore();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t strip_keys = Fp32StripKeys(p);
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

  unsigned char* keys = shared + Queries<T>::kBytes;
  unsigned char* next_keys = keys + T::kKeyBytes;
  flash_fp32::CopyTile(keys, tile_bytes, T::kKeyBytes, T::kThreads);
  flash::CommitCopies();
  ScoreBounds<T> score_bounds;
  flash_fp32::LoadQueries<T>(block, shared, score_bounds);
  for (int tile = first; tile < last; ++tile) {
    const int key0 = tile * T::kKeys;
    Scores<T> s = {};
    flash::WaitCopies<0>();
    __syncthreads();  // this tile is there, and nobody reads the last one any more
    tile_bytes += T::kBytes;
    if (tile + 1 < last) flash_fp32::CopyTile(next_keys, tile_bytes, T::kKeyBytes, T::kThreads);
    flash::CommitCopies();
    if (key0 < bounds.end && key0 + T::kKeys > bounds.begin) {
      flash_fp32::ScoreTile<T>(block, shared, keys, key0, score_bounds, s);
      MendScores<T>(block, key0, s);
    }
    flash_fp32::Modify<T>(block, key0, s);
    __syncthreads();  // nobody reads this tile of k any more
    float* staged = reinterpret_cast<float*>(keys) + threadIdx.x / 32 * 16 * T::kKeys;
    StoreScores<T>(block, key0, s, staged, head_scores);
    Exchange(keys, next_keys);
  }
}

// Asks for a block's tile of weights (ONLINE: scores), from its first row on; zeros where there are none.
template <typename T>
__device__ inline void CopyWeights(const Block& block, int key0, const float* rows, unsigned char* shared) {
  constexpr int kChunks = T::kKeys / 4, kRowStep = T::kThreads / kChunks;
  const int64_t stride = ScoreStride(*block.problem);
  const uint32_t to = flash::SharedAddress(shared);
  const int chunk = threadIdx.x % kChunks, first_row = threadIdx.x / kChunks;
  const bool column_exists = key0 + chunk * 4 < stride;
  const float* from = rows + first_row * stride + key0 + chunk * 4;
#pragma unroll
  for (int i = 0; i < T::kRows / kRowStep; ++i, from += kRowStep * stride) {
    const int row = first_row + i * kRowStep;
    const bool exists = column_exists && block.row0 + row < block.problem->q_len;
    flash::CopyAsync16(to + FloatChunk<T>(row, chunk) * 4, exists ? from : rows, exists);
  }
}

// A warp's rows of it; `behind` in columns behind the end of a row.
template <typename T>
__device__ inline void LoadWeights(const Block& block, int key0, const unsigned char* shared, float behind,
                                   Scores<T>& w) {
  const int lane = threadIdx.x % 32;
  const float* weights = reinterpret_cast<const float*>(shared);
#pragma unroll
  for (int i = 0; i < T::kKeys / 4; ++i) {
    const int n = i / 2, half = i % 2;
    const float2 two =
        *reinterpret_cast<const float2*>(weights + FloatPair<T>(block.warp_row + half * 8 + lane / 4, n));
    w[0][n][half * 2] = two.x;
    w[0][n][half * 2 + 1] = two.y;
  }
  const int columns = static_cast<int>(min(ScoreStride(*block.problem) - key0, int64_t{T::kKeys}));
  if (columns == T::kKeys) return;
#pragma unroll
  for (int i = 0; i < T::kKeys / 2; ++i) {
    if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= columns) w[0][i / 4][i % 4] = behind;
  }
}

// Turns scores into weights.
template <typename T>
__device__ inline void FormWeights(const RowWeight (&weight)[2], Scores<T>& w) {
#pragma unroll
  for (int i = 0; i < T::kKeys / 2; ++i) w[0][i / 4][i % 4] = weight[i / 2 % 2](w[0][i / 4][i % 4]);
}

// Writes a tile of all weights.
template <typename T>
__device__ inline void StoreWeights(const Block& block, int key0, const Scores<T>& w) {
  const Problem& p = *block.problem;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = block.row0 + block.warp_row + half * 8 + lane / 4;
    if (row >= p.q_len) continue;
    float* to = p.weights + block.head * p.weights_head_stride + row * p.weights_row_stride;
#pragma unroll
    for (int i = 0; i < T::kKeys / 4; ++i) {
      const int key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (key < p.kv_len) to[key] = w[0][i / 2][half * 2 + i % 2];
    }
  }
}

// Writes a thread's part of out; what did not come out finite is summed again. scores: of the block's first
// row.
template <typename T>
__device__ inline void StoreOutput(const Block& block, const float* scores, const RowWeight (&weight)[2],
                                   const WarpState<T>& state) {
  const Problem& p = *block.problem;
  const int lane = threadIdx.x % 32;
  const int64_t stride = ScoreStride(p);
#pragma unroll
  for (int i = 0; i < T::kDim / 2; ++i) {
    const int n = i / 4, j = i % 4;
    const int64_t row = block.row0 + block.warp_row + j / 2 * 8 + lane / 4;
    const int column = n * 8 + lane % 4 * 2 + j % 2;
    if (row >= p.q_len || column >= block.v_head_dim) continue;
    float x = state.out[0][n][j];
    if (!isfinite(x)) {
      x = PlainSum<float>(p, block.head, row, column, scores + (row - block.row0) * stride, weight[j / 2]);
    }
    static_cast<float*>(p.out)[row * p.out_strides.token + block.head * p.out_strides.head + column] = x;
  }
}

// Shared memory: two tiles of v, two of weights.
template <int kDim>
constexpr int kWeightBytes = Tile<kDim>::kRows* Tile<kDim>::kKeys * 4;
template <int kDim>
constexpr int kSumSharedBytes = 2 * (Tile<kDim>::kValueBytes + kWeightBytes<kDim>);

template <int kDim>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, kSumBlocks)
    Fp32WeightedSumKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t v_head_dim,
                          bool form_weights) {
  using T = Tile<kDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  AllowNextLaunch();
  WaitForLaunchBefore();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const Place place = PlaceOf(p, blockIdx.x - item.block_begin, T::kRows, 1);
  Block block = flash_fp32::PlaceBlock<T>(p, place.head, place.row_tile, 1.0f);
  block.v_head_dim = v_head_dim;
  const int64_t stride = ScoreStride(p);
  const bool all_weights = form_weights && p.weights != nullptr && p.weight_rows == nullptr;
  const float* scores = m.scores + item.offset + (block.head * p.q_len + block.row0) * stride;
  RowWeight weight[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = block.row0 + block.warp_row + half * 8 + threadIdx.x % 32 / 4;
    weight[half].form = form_weights;
    if (row < p.q_len) {
      weight[half] = RowWeight(m, item.row_offset + block.head * p.q_len + row, form_weights);
    }
  }
  // Keys that no row of the block sees have weights of 0, which matter only where they must be written.
  KeyBounds bounds = BoundsOf(p, block.row0, min(int64_t{block.row0} + T::kRows, p.q_len));
  if (all_weights) bounds = {0, p.kv_len};
  const int first = static_cast<int>(bounds.begin / T::kKeys);
  const int last = static_cast<int>((bounds.end + T::kKeys - 1) / T::kKeys);
  const int64_t key_tiles = (p.kv_len + T::kKeys - 1) / T::kKeys;
  const char* tile_bytes =
      m.tiles + item.tile_offset + (block.kv_head * key_tiles + first) * T::kBytes + T::kKeyBytes;
  const float behind = form_weights ? NegativeInfinity() : 0.0f;
  WarpState<T> state;
  state.correction[0][0] = state.correction[0][1] = 1.0f;
  unsigned char* values = shared;
  unsigned char* weights = shared + 2 * T::kValueBytes;
  unsigned char* next_values = values + T::kValueBytes;
  unsigned char* next_weights = weights + kWeightBytes<kDim>;
  if (first < last) {
    flash_fp32::CopyTile(values, tile_bytes, T::kValueBytes, T::kThreads);
    CopyWeights<T>(block, first * T::kKeys, scores, weights);
  }
  flash::CommitCopies();
  for (int tile = first; tile < last; ++tile) {
    const int key0 = tile * T::kKeys;
    flash::WaitCopies<0>();
    __syncthreads();  // these tiles are there, and nobody reads the last ones any more
    tile_bytes += T::kBytes;
    if (tile + 1 < last) {
      flash_fp32::CopyTile(next_values, tile_bytes, T::kValueBytes, T::kThreads);
      CopyWeights<T>(block, key0 + T::kKeys, scores, next_weights);
    }
    flash::CommitCopies();
    Scores<T> w;
    LoadWeights<T>(block, key0, weights, behind, w);
    if (form_weights) FormWeights<T>(weight, w);
    if (all_weights) StoreWeights<T>(block, key0, w);
    if (reinterpret_cast<const float*>(values + 2 * T::kPartBytes)[kDim] != 0.0f) {
      flash_fp32::MultiplyWideValues<T>(block, key0, w, state);
    } else {
      flash_fp32::MultiplyValues<T>(block, values, w, state);
    }
    Exchange(values, next_values);
    Exchange(weights, next_weights);
  }
  StoreOutput<T>(block, scores, weight, state);
}

template <int kDim>
absl::Status EnqueueFp32Scores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream) {
  constexpr int kBytes = kScoreSharedBytes<kDim>;
  static_assert(kBytes <= flash_fp32::kSharedBytesMax);
  return LaunchEarly(Fp32ScoresKernel<kDim>, work.blocks, Tile<kDim>::kThreads, kBytes, stream, work.list, m,
                     launch.head_dim);
}

template <int kDim>
absl::Status EnqueueFp32WeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                    const Matrices& m, Stream stream) {
  constexpr int kBytes = kSumSharedBytes<kDim>;
  static_assert(kBytes <= flash_fp32::kSharedBytesMax);
  return LaunchEarly(Fp32WeightedSumKernel<kDim>, work.blocks, Tile<kDim>::kThreads, kBytes, stream,
                     work.list, m, launch.v_head_dim, form_weights);
}

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_FP32_CUH_
