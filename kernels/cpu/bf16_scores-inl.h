// The first matrix product for bf16 by the BF16 dot product of AVX-512, vdpbf16ps: two dimensions to an
// instruction, and nothing to widen. Products are exact and sums fp32, as in scores-inl.h, but the
// instruction takes subnormal inputs and results as 0.
#if defined(ATTEND_KERNELS_CPU_BF16_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_BF16_SCORES_INL_H_
#undef ATTEND_KERNELS_CPU_BF16_SCORES_INL_H_
#else
#define ATTEND_KERNELS_CPU_BF16_SCORES_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/plan.h"
#include "kernels/cpu/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/bf16_dot.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

// Whether queries are packed by PackPairs, and scores formed by PairScores.
inline bool InPairs(const Launch& launch) { return launch.dtype == DataType::kBf16 && UsesBf16Dot(); }

// q_t[dim / 2][lane] = two elements of q, as they are: the scale comes after the product, since a query times
// the scale would be no bf16.
inline void PackPairs(const Launch& launch, const Tile& tile, size_t lanes, float* q_t) {
  const Problem& p = *tile.problem;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const uint16_t* row = static_cast<const uint16_t*>(p.q) + tile.row[lane] * p.q_strides.token +
                          tile.head[lane] * p.q_strides.head;
    for (int d = 0; d < launch.head_dim; d += 2) {
      std::memcpy(q_t + d / 2 * lanes + lane, row + d, sizeof(float));
    }
  }
}

// Keys [key, key + count) as [count, head_dim]: in place where they lie end to end, else copied to buffer.
inline const uint16_t* LoadBf16Keys(const Launch& launch, const Tile& tile, int64_t key, int count,
                                    float* buffer) {
  const Problem& p = *tile.problem;
  const uint16_t* k = static_cast<const uint16_t*>(p.k);
  const auto offset = [&](int64_t token) {
    return TokenOffset(p.k_strides, p.pages, p.pages.k_page_stride, tile.kv_head, token);
  };
  if (p.pages.table == nullptr && p.k_strides.token == launch.head_dim) return k + offset(key);
  uint16_t* const to = reinterpret_cast<uint16_t*>(buffer);
  for (int c = 0; c < count; ++c) {
    std::memcpy(to + c * launch.head_dim, k + offset(key + c), launch.head_dim * sizeof(uint16_t));
  }
  return to;
}

// s[key][lane] = factor * q·k of count keys; s has room for a multiple of kBlock keys. max[v] is raised to
// the largest. A function of its own, never inlined, because of its instructions.
//
// One chain for all of head_dim, unlike Scores: its error is at most about head_dim * 2^-24 of sum |q * k|.
// The largest measured, of a million scores of unit-normal q and k at head_dim 256, was 2.4 * 2^-24 of it
// (0.8 summed as Scores does): nothing beside the 2^-9 of an output of bf16.
template <int kVectors>
__attribute__((target(HWY_TARGET_STR ",avx512bf16"))) HWY_NOINLINE void PairScores(
    const float* HWY_RESTRICT q_t, const uint16_t* keys, int count, int head_dim, float factor,
    float* HWY_RESTRICT s, Floats* max) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  for (int c = 0; c < count; c += kBlock) {
    const uint16_t* k[kBlock];  // behind the last key, the last again: its scores are not looked at
    __m512 acc[kBlock][kVectors];
    for (int i = 0; i < kBlock; ++i) {
      k[i] = keys + static_cast<size_t>(std::min(c + i, count - 1)) * head_dim;
      for (int v = 0; v < kVectors; ++v) acc[i][v] = _mm512_setzero_ps();
    }
    for (int d = 0; d < head_dim; d += 2) {
      __m512bh q[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        q[v] = (__m512bh)_mm512_load_ps(q_t + d / 2 * kLanes + v * kFloats);
      }
      for (int i = 0; i < kBlock; ++i) {
        int32_t bits;
        std::memcpy(&bits, k[i] + d, sizeof(bits));
        const __m512bh pair = (__m512bh)_mm512_set1_epi32(bits);
        for (int v = 0; v < kVectors; ++v) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], pair, q[v]);
      }
    }
    for (int i = 0; i < kBlock; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        float* const to = s + (c + i) * kLanes + v * kFloats;
        _mm512_store_ps(to, acc[i][v]);
        const Floats score = hn::Mul(hn::Load(df, to), hn::Set(df, factor));
        hn::Store(score, df, to);
        max[v] = hn::Max(max[v], score);
      }
    }
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_AVX3

#endif
