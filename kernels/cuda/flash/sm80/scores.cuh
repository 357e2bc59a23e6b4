// One warp's scores of one tile of keys: the first matrix product, the score modifiers, the masks, and
// the online softmax over them.
//
// Fragments are those of mma.m16n8k16: of a 16x8 block of scores, lane l holds row l / 4, keys l % 4 * 2 and
// + 1 in elements 0 and 1, and row l / 4 + 8 in elements 2 and 3. So a thread owns two rows of each 16-row
// tile, and a row belongs to four neighbouring lanes (a quad).
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_SCORES_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_SCORES_CUH_

#include <cstdint>

#include "kernels/cuda/flash/common.cuh"
#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/flash/sm80/load.cuh"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/flash/sm80/tile.h"

namespace attend::cuda::flash {

__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Where this thread stands in its CTA's tile.
template <typename Tile>
struct Lane {
  int lane = threadIdx.x % 32;
  int row_warp = threadIdx.x / 32 % Tile::kRowWarps;
  int key_warp = threadIdx.x / 32 / Tile::kRowWarps;

  // The tile row of fragment row `half` (0 or 1) of 16-row tile rt.
  __device__ int Row(int rt, int half) const {
    return (row_warp * Tile::kRowTiles + rt) * 16 + half * 8 + lane / 4;
  }
  // The key, from the tile's first, of element e of this warp's 8-key block n.
  __device__ int Key(int n, int e) const {
    return key_warp * Tile::kWarpKeys + n * 8 + lane % 4 * 2 + (e & 1);
  }
};

template <typename Tile>
using ScoreFragments = float[Tile::kRowTiles][Tile::kWarpKeys / 8][4];

template <typename Tile>
__device__ inline void LoadQueryFragment(uint32_t (&a)[4], uint32_t q, const Lane<Tile>& at, int rt, int kk) {
  const int row = (at.row_warp * Tile::kRowTiles + rt) * 16 + at.lane % 16;
  LoadMatrix(a, q + ChunkOffset<Tile::kHeadDim>(row, kk * 2 + at.lane / 16));
}

// Q of this warp: fragments in registers, or an address in shared memory.
template <typename Tile>
struct Query {
  static constexpr int kSteps = Tile::kHeadDim / 16;
  uint32_t shared;
  uint32_t fragments[Tile::kQueryInRegisters ? Tile::kRowTiles : 1][Tile::kQueryInRegisters ? kSteps : 1][4];

  __device__ void Load(const unsigned char* q, const Lane<Tile>& at) {
    shared = SharedAddress(q);
    if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
      for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
        for (int kk = 0; kk < kSteps; ++kk) LoadQueryFragment(fragments[rt][kk], shared, at, rt, kk);
      }
    }
  }
  __device__ void Get(uint32_t (&a)[4], const Lane<Tile>& at, int rt, int kk) const {
    if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = fragments[rt][kk][i];
    } else {
      LoadQueryFragment(a, shared, at, rt, kk);
    }
  }
};

// s = q·k for this warp's rows and keys.
template <typename T, typename Tile>
__device__ inline void Scores(ScoreFragments<Tile>& s, const Query<Tile>& q, const unsigned char* slot,
                              const Lane<Tile>& at) {
  const uint32_t k = SharedAddress(slot);
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[rt][n][e] = 0.0f;
    }
  }
  const int key_row = at.key_warp * Tile::kWarpKeys + at.lane % 8 + at.lane / 16 * 8;
  const int half = at.lane / 8 % 2;
#pragma unroll
  for (int kk = 0; kk < Tile::kHeadDim / 16; ++kk) {
    uint32_t a[Tile::kRowTiles][4];
#pragma unroll
    for (int rt = 0; rt < Tile::kRowTiles; ++rt) q.Get(a[rt], at, rt, kk);
#pragma unroll
    for (int n = 0; n < Tile::kWarpKeys / 16; ++n) {
      uint32_t b[4];
      LoadMatrix(b, k + ChunkOffset<Tile::kHeadDim>(key_row + n * 16, kk * 2 + half));
#pragma unroll
      for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
        Element<T>::Mma(s[rt][2 * n], a[rt], b[0], b[1]);
        Element<T>::Mma(s[rt][2 * n + 1], a[rt], b[2], b[3]);
      }
    }
  }
}

// The score modifiers that cost time even to look for: s becomes scale * s with softcap, bias and ALiBi,
// and -inf where the boolean mask says so.
template <typename T, typename Tile>
__device__ inline void Modify(ScoreFragments<Tile>& s, const Shared<Tile>& shared, const Lane<Tile>& at,
                              int key0) {
  const FlashProblem& p = shared.problem;
  const float softcap_inverse = 1.0f / p.softcap;
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.Row(rt, half);
      const int64_t token = max(shared.row_token[row], 0);
      const int64_t head = shared.row_head[row];
      const int64_t bias_row = head * p.bias_head_stride + token * p.bias_row_stride;
      const uint8_t* mask = p.mask + head * p.mask_head_stride + token * p.mask_row_stride;
      const float slope = p.alibi_slopes != nullptr ? p.alibi_slopes[head] : 0.0f;
      const int origin = static_cast<int>(token) + p.kv_len - p.q_len;
#pragma unroll
      for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = key0 + at.Key(n, e);
          float x = p.scale * s[rt][n][e];
          if (p.softcap > 0) x = p.softcap * tanhf(x * softcap_inverse);
          // Keys that the row may not see are masked afterwards: their bias and mask need not exist.
          if (key >= shared.row_begin[row] && key < shared.row_end[row]) {
            if (slope != 0) x -= slope * static_cast<float>(abs(origin - key));
            if (p.bias != nullptr) {
              const int64_t i = bias_row + key * p.bias_key_stride;
              const float bias =
                  BoundedBias(p.bias_is_fp32 ? static_cast<const float*>(p.bias)[i]
                                             : Element<T>::ToFloat(static_cast<const T*>(p.bias)[i]));
              x = bias == NegativeInfinity() ? bias : x + bias;
            }
            if (p.mask != nullptr && mask[key * p.mask_key_stride] == 0) x = NegativeInfinity();
          }
          s[rt][n][e] = x;
        }
      }
    }
  }
}

// -inf for keys outside their row's range or the CTA's.
template <typename Tile>
__device__ inline void MaskRange(ScoreFragments<Tile>& s, const Shared<Tile>& shared, const Lane<Tile>& at,
                                 int key0) {
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int begin = max(shared.row_begin[at.Row(rt, half)], shared.work.key_begin) - key0;
      const int end = min(shared.row_end[at.Row(rt, half)], shared.work.key_end) - key0;
#pragma unroll
      for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = at.Key(n, e);
          if (key < begin || key >= end) s[rt][n][e] = NegativeInfinity();
        }
      }
    }
  }
}

// The running state of this thread's rows. sum is this thread's share of the row.
template <typename Tile>
struct Softmax {
  static constexpr int kRows = 2 * Tile::kRowTiles;
  float max[kRows];
  float sum[kRows];

  __device__ void Reset() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      max[r] = NegativeInfinity();
      sum[r] = 0.0f;
    }
  }

  // Turns scores into exp2((s - max) * factor) and rescales the running output when a maximum has grown.
  // s - max comes first: folded into one fused multiply-add, the rounding of max * factor alone would be
  // thousands for large scores. A maximum of -inf (nothing visible yet) counts as 0, so that no -inf - -inf
  // arises.
  template <int kBlocks>
  __device__ void Update(ScoreFragments<Tile>& s, float (&out)[Tile::kRowTiles][kBlocks][4], float factor) {
#pragma unroll
    for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
      float correction[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 2 * rt + half;
        float m = max[r];
#pragma unroll
        for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
          m = fmaxf(m, fmaxf(s[rt][n][2 * half], s[rt][n][2 * half + 1]));
        }
        m = QuadMax(m);
        const float base = m == NegativeInfinity() ? 0.0f : m;
        correction[half] = max[r] == m ? 1.0f : Exp2((max[r] - base) * factor);
        max[r] = m;
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[rt][n][e] = Exp2((s[rt][n][e] - base) * factor);
            total += s[rt][n][e];
          }
        }
        sum[r] = sum[r] * correction[half] + total;
      }
      if (__any_sync(kAllLanes, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out[rt][n][e] *= correction[e / 2];
        }
      }
    }
  }
};

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_SCORES_CUH_
