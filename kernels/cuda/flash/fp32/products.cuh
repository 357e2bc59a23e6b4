// The two products of attention over split tiles (tile.h), and what lies between them and a block's place:
// what FLASH in fp32 shares with NAIVE and ONLINE.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_PRODUCTS_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_PRODUCTS_CUH_

#include "kernels/cuda/flash/fp32/split.cuh"
#include "kernels/cuda/flash/fp32/tile.h"
#include "kernels/cuda/flash/fp32/wide.cuh"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/score.cuh"

namespace attend::cuda::flash_fp32 {

// What compute capability 8.6 has, in bytes.
inline constexpr int kSharedBytesMax = 101376;

// q of a block in shared memory: hi and lo, float scale[kRows].
template <typename T>
struct Queries {
  static constexpr int kPart = T::kRows * T::kDim * 2;
  static constexpr int kScale = 2 * kPart;
  static constexpr int kBytes = kScale + T::kRows * 4;
};

// What a block works on.
struct Block {
  const Problem* problem;
  int32_t head, kv_head;
  int row0;      // of the block
  int warp_row;  // of the warp, from row0
  int32_t head_dim, v_head_dim;
  int full_begin, full_end;  // keys that every row of the block sees, by causal mask and window
  bool plain;                // no modifiers but scale and bounds
  float unit;                // what the scores are to be multiplied with: log2(e), or 1
};

// Of the |score| of each group of 16 rows of a warp, over the largest |k|.
template <typename T>
using ScoreBounds = float[T::kGroups];

// The block that owns a tile of rows of one head; head_dims are the caller's to fill in.
template <typename T>
__device__ inline Block PlaceBlock(const Problem& p, int32_t head, int64_t row_tile, float unit) {
  Block block;
  block.problem = &p;
  block.head = head;
  block.kv_head = head / (p.q_heads / p.kv_heads);
  block.row0 = static_cast<int>(row_tile * T::kRows);
  block.warp_row = threadIdx.x / 32 * 16 * T::kGroups;
  const int64_t last = min(int64_t{block.row0} + T::kRows, p.q_len) - 1;
  block.full_begin = static_cast<int>(BoundsOf(p, last, last + 1).begin);
  block.full_end = static_cast<int>(BoundsOf(p, block.row0, block.row0 + 1).end);
  block.plain = IsPlain(p);
  block.unit = unit;
  return block;
}

// A bound of |scale · q·k| over the largest |k|, from the exponent bits of the largest |q|.
__device__ inline float ScoreBound(const Problem& p, int dim, int top_exponent) {
  return fabsf(p.scale) * static_cast<float>(dim) * __int_as_float(min(top_exponent + 1, 255) << 23);
}

// The scores of one tile and the running state of a warp's rows, as mma has them: [group of 16 rows][8
// columns], and of rows g and g + 8 of a group.
template <typename T>
struct WarpState {
  float out[T::kGroups][T::kDim / 8][4] = {};
  float max[T::kGroups][2];  // of scores · log2(e)
  float sum[T::kGroups][2] = {};
  float correction[T::kGroups][2];
};
template <typename T>
using Scores = float[T::kGroups][T::kKeys / 8][4];

// Three products of parts: main += hi·hi, cross += hi·lo + lo·hi, for two groups of 8 columns.
template <int kGroups>
__device__ inline void MultiplyParts(float (&main)[kGroups][2][4], float (&cross)[kGroups][2][4],
                                     const uint32_t (&a_hi)[kGroups][4], const uint32_t (&a_lo)[kGroups][4],
                                     const uint32_t (&b_hi)[4], const uint32_t (&b_lo)[4]) {
  // Products that follow each other add to different accumulators.
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      flash::Element<__half>::Mma(cross[g][j], a_lo[g], b_hi[2 * j], b_hi[2 * j + 1]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      flash::Element<__half>::Mma(main[g][j], a_hi[g], b_hi[2 * j], b_hi[2 * j + 1]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      flash::Element<__half>::Mma(cross[g][j], a_hi[g], b_lo[2 * j], b_lo[2 * j + 1]);
    }
  }
}

// q of the block to shared memory, scaled row by row and split.
template <typename T>
__device__ void LoadQueries(const Block& block, unsigned char* shared, ScoreBounds<T>& bounds) {
  using Q = Queries<T>;
  // Rows at a time: their loads overlap.
  constexpr int kBatch = T::kDim <= 128 ? 8 : 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < T::kGroups; ++g) {
    int group_top = 0;
#pragma unroll 1
    for (int row0 = block.warp_row + g * 16; row0 < block.warp_row + g * 16 + 16; row0 += kBatch) {
      float x[kBatch][T::kDim / 32];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool exists = block.row0 + row0 + i < block.problem->q_len;
        const float* q =
            exists ? QueryRow<float>(*block.problem, block.row0 + row0 + i, block.head) : nullptr;
#pragma unroll
        for (int j = 0; j < T::kDim / 32; ++j) {
          const int d = j / 2 * 64 + 2 * lane + j % 2;
          x[i][j] = exists && d < block.head_dim ? q[d] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        int top = 0;
#pragma unroll
        for (int j = 0; j < T::kDim / 32; ++j) top = max(top, ExponentBits(x[i][j]));
        top = __reduce_max_sync(0xffffffff, top);
        group_top = max(group_top, top);
        const Scaling scaling = ScalingOf(top);
#pragma unroll
        for (int j = 0; j < T::kDim / 64; ++j) {
          const HalfParts parts = Split(x[i][2 * j] * scaling.to, x[i][2 * j + 1] * scaling.to);
          const int d = j * 64 + 2 * lane;
          unsigned char* to = shared + ChunkOffset<T::kDim>(row0 + i, d / 8) + d % 8 * 2;
          *reinterpret_cast<uint32_t*>(to) = parts.hi;
          *reinterpret_cast<uint32_t*>(to + Q::kPart) = parts.lo;
        }
        if (lane == 0) reinterpret_cast<float*>(shared + Q::kScale)[row0 + i] = scaling.from;
      }
    }
    bounds[g] = ScoreBound(*block.problem, T::kDim, group_top);
  }
}

__device__ inline void CopyTile(unsigned char* shared, const char* from, int bytes, int threads) {
  const uint32_t to = flash::SharedAddress(shared);
  for (int i = threadIdx.x * 16; i < bytes; i += threads * 16) flash::CopyAsync16(to + i, from + i, true);
}

// q·k of a tile, times the scales of its rows and keys.
template <typename T>
__device__ inline void MultiplyKeys(const Block& block, const unsigned char* queries,
                                    const unsigned char* keys, Scores<T>& s) {
  using Q = Queries<T>;
  const int lane = threadIdx.x % 32;
  const uint32_t q = flash::SharedAddress(queries), k = flash::SharedAddress(keys);
  const int q_row = block.warp_row + (lane & 15), q_chunk = lane >> 4;
  const int k_row = (lane >> 4) * 8 + (lane & 7), k_chunk = (lane >> 3) & 1;
  const float* key_scale = reinterpret_cast<const float*>(keys + 2 * T::kPartBytes);
  const float* row_scale = reinterpret_cast<const float*>(queries + Q::kScale) + block.warp_row + lane / 4;
  // More steps would not leave registers enough.
  constexpr int kUnrolled = T::kGroups > 1 ? 2 : 4;
  // Pairs of 8 keys that share one load of q.
  constexpr int kPairs = T::kKeys >= 32 ? 2 : 1;
#pragma unroll
  for (int n = 0; n < T::kKeys / 16; n += kPairs) {
    float main[kPairs][T::kGroups][2][4] = {}, cross[kPairs][T::kGroups][2][4] = {};
#pragma unroll kUnrolled
    for (int step = 0; step < T::kDim / 16; ++step) {
      uint32_t a_hi[T::kGroups][4], a_lo[T::kGroups][4];
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
        const uint32_t from = q + ChunkOffset<T::kDim>(q_row + g * 16, step * 2 + q_chunk);
        flash::LoadMatrix(a_hi[g], from);
        flash::LoadMatrix(a_lo[g], from + Q::kPart);
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        uint32_t b_hi[4], b_lo[4];
        const uint32_t from = k + ChunkOffset<T::kDim>((n + pair) * 16 + k_row, step * 2 + k_chunk);
        flash::LoadMatrix(b_hi, from);
        flash::LoadMatrix(b_lo, from + T::kPartBytes);
        MultiplyParts<T::kGroups>(main[pair], cross[pair], a_hi, a_lo, b_hi, b_lo);
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs * 2; ++i) {
      const float2 of_keys = *reinterpret_cast<const float2*>(key_scale + (n * 2 + i) * 8 + lane % 4 * 2);
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float x = fmaf(cross[i / 2][g][i % 2][j], kLoInverse, main[i / 2][g][i % 2][j]);
          s[g][n * 2 + i][j] = x * (j % 2 == 0 ? of_keys.x : of_keys.y) * row_scale[g * 16 + j / 2 * 8];
        }
      }
    }
  }
}

// The same by the tf32 path, for the 16-row groups that need it.
template <typename T>
__device__ inline void MultiplyWideKeys(const Block& block, int key0, const ScoreBounds<T>& bounds,
                                        float key_max, Scores<T>& s) {
#pragma unroll
  for (int g = 0; g < T::kGroups; ++g) {
    if (!(bounds[g] * key_max > kScoreBoundMax)) continue;
    const WideRows rows = {block.problem, block.head, block.kv_head, block.row0 + block.warp_row + g * 16};
#pragma unroll
    for (int n = 0; n < T::kKeys / 8; ++n) {
      float tile[4];
      WideScores(rows, key0 + n * 8, block.head_dim, tile);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[g][n][j] = tile[j];
    }
  }
}

// q·k of a tile by whichever path each group of rows takes.
template <typename T>
__device__ inline void ScoreTile(const Block& block, const unsigned char* queries, const unsigned char* keys,
                                 int key0, const ScoreBounds<T>& bounds, Scores<T>& s) {
  MultiplyKeys<T>(block, queries, keys, s);
  const float key_max = reinterpret_cast<const float*>(keys + 2 * T::kPartBytes)[T::kKeys];
  float bound = bounds[0];
#pragma unroll
  for (int g = 1; g < T::kGroups; ++g) bound = fmaxf(bound, bounds[g]);
  if (bound * key_max > kScoreBoundMax) MultiplyWideKeys<T>(block, key0, bounds, key_max, s);
}

// Turns q·k into scores · unit, -inf where a row may not see the key.
template <typename T>
__device__ inline void Modify(const Block& block, int key0, Scores<T>& s) {
  const int lane = threadIdx.x % 32;
  if (block.plain) {
    const float factor = block.problem->scale * block.unit;
#pragma unroll
    for (int i = 0; i < T::kGroups * T::kKeys / 2; ++i) {
      s[i / (T::kKeys / 2)][i / 4 % (T::kKeys / 8)][i % 4] *= factor;
    }
    if (key0 >= block.full_begin && key0 + T::kKeys <= block.full_end) return;
  }
#pragma unroll
  for (int r = 0; r < T::kGroups * 2; ++r) {
    const int64_t row =
        min(block.row0 + block.warp_row + r * 8 + lane / 4, static_cast<int>(block.problem->q_len) - 1);
    if (block.plain) {
      const KeyBounds bounds = BoundsOf(*block.problem, row, row + 1);
      const int begin = static_cast<int>(bounds.begin) - key0, end = static_cast<int>(bounds.end) - key0;
#pragma unroll
      for (int i = 0; i < T::kKeys / 4; ++i) {
        const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
        if (column < begin || column >= end) x = NegativeInfinity();
      }
    } else {
      const RowScore<float> score(*block.problem, block.head, row);
#pragma unroll
      for (int i = 0; i < T::kKeys / 4; ++i) {
        const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
        x = block.unit * ModifiedScore(score, key0 + column, x);
      }
    }
  }
}

// out = out · correction + weights · v, v in shared memory.
template <typename T>
__device__ inline void MultiplyValues(const Block& block, const unsigned char* values, const Scores<T>& s,
                                      WarpState<T>& state) {
  const int lane = threadIdx.x % 32;
  uint32_t p_hi[T::kKeys / 16][T::kGroups][4], p_lo[T::kKeys / 16][T::kGroups][4];
#pragma unroll
  for (int i = 0; i < T::kGroups * T::kKeys / 4; ++i) {
    const int step = i / 4 / T::kGroups, g = i / 4 % T::kGroups, j = i % 4;
    const float(&two)[4] = s[g][step * 2 + j / 2];
    const HalfParts parts = Split(two[j % 2 * 2], two[j % 2 * 2 + 1]);
    p_hi[step][g][j] = parts.hi;
    p_lo[step][g][j] = parts.lo;
  }
  const float* scale = reinterpret_cast<const float*>(values + 2 * T::kPartBytes);
  const uint32_t v = flash::SharedAddress(values);
  const int v_row = lane & 15, v_chunk = lane >> 4;
#pragma unroll
  for (int n = 0; n < T::kDim / 16; ++n) {
    if (T::kDim > 64 && n * 16 >= block.v_head_dim) break;
    float main[T::kGroups][2][4] = {}, cross[T::kGroups][2][4] = {};
#pragma unroll
    for (int step = 0; step < T::kKeys / 16; ++step) {
      uint32_t b_hi[4], b_lo[4];
      const uint32_t from = v + ChunkOffset<T::kDim>(step * 16 + v_row, n * 2 + v_chunk);
      flash::LoadMatrixTransposed(b_hi, from);
      flash::LoadMatrixTransposed(b_lo, from + T::kPartBytes);
      MultiplyParts<T::kGroups>(main, cross, p_hi[step], p_lo[step], b_hi, b_lo);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 of_columns = *reinterpret_cast<const float2*>(scale + (n * 2 + i) * 8 + lane % 4 * 2);
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& out = state.out[g][n * 2 + i][j];
          const float x = fmaf(cross[g][i][j], kLoInverse, main[g][i][j]);
          out = fmaf(x, j % 2 == 0 ? of_columns.x : of_columns.y, out * state.correction[g][j / 2]);
        }
      }
    }
  }
}

// The same by the tf32 path.
template <typename T>
__device__ inline void MultiplyWideValues(const Block& block, int key0, const Scores<T>& s,
                                          WarpState<T>& state) {
#pragma unroll
  for (int g = 0; g < T::kGroups; ++g) {
    const WideRows rows = {block.problem, block.head, block.kv_head, block.row0 + block.warp_row + g * 16};
    float weights[T::kKeys / 8][4];
#pragma unroll
    for (int i = 0; i < T::kKeys / 2; ++i) weights[i / 4][i % 4] = s[g][i / 4][i % 4];
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
      if (n * 8 >= block.v_head_dim) break;
      float tile[4];
      WideValues<T::kKeys>(rows, key0, weights, n * 8, tile);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& out = state.out[g][n][j];
        out = fmaf(out, state.correction[g][j / 2], tile[j]);
      }
    }
  }
}

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_PRODUCTS_CUH_
