// What happens to a tile of scores before the softmax: softcap, ALiBi, masks. And the care that masked tiles
// need where v is not finite.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_SCORES_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_SCORES_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/softmax.h"
#include "kernels/cuda/flash/sm90/traits.h"

namespace attend::cuda::sm90 {

inline constexpr float kLog2E = 1.44269504088896340736f;

// The keys [low, high) that a row sees.
struct RowKeys {
  int32_t low, high;
};
__device__ inline RowKeys KeysOfRow(const Group& g, int row) {
  const int32_t diagonal = row + g.diagonal;
  return {max(0, diagonal - g.window_left), min(g.kv_len, diagonal + g.window_right + 1)};
}

// The tiles [begin, end) that each of rows [first, last] sees whole.
struct WholeTiles {
  int32_t begin, end;
  __device__ bool Has(int tile) const { return tile >= begin && tile < end; }
};
__device__ inline WholeTiles WholeTilesOfRows(const Group& g, int first, int last, int keys) {
  return {(KeysOfRow(g, last).low + keys - 1) / keys, max(0, KeysOfRow(g, first).high) / keys};
}

// Hides the keys from `high` on, and those below `low` where kLow. row: the thread's first; the other is
// eight below.
template <bool kLow, int kCount>
__device__ inline void HideKeys(float (&s)[kCount], const Group& g, int row, int first_key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowKeys visible = KeysOfRow(g, row + 8 * r);
    const int low = visible.low - first_key;
    const int high = visible.high - first_key;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * i + e;
        float& score = s[4 * i + 2 * r + e];
        if constexpr (kLow) {
          score = key >= low && key < high ? score : -INFINITY;
        } else {
          score = key < high ? score : -INFINITY;
        }
      }
    }
  }
}

// Scores q·k to log2(e) * (softcap(scale * q·k) - slope * distance). row: the thread's first.
template <int kCount>
__device__ inline void ModifyTile(float (&s)[kCount], const Group& g, float slope, int row, int first_key) {
  if (g.softcap_log2 > 0.0f) {
    // c * tanh(x) = c - 2c / (1 + e^2x), with the ends right by themselves.
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = fmaf(g.softcap_minus_twice, Reciprocal(1.0f + Exp2(s[i] * g.softcap_factor)), g.softcap_log2);
    }
  } else {
    const float factor = kLog2E * g.scale;
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] *= factor;
  }
  if (slope != 0.0f) {
    // Whole numbers, but in fp32: to convert each would take as long as its exponential.
    const float origin = static_cast<float>(row + g.alibi_diagonal - first_key);
    const float step = -kLog2E * slope;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float distance = origin + static_cast<float>(8 * ((i / 2) % 2) - 8 * (i / 4) - i % 2);
      s[i] = fmaf(step, fabsf(distance), s[i]);
    }
  }
}

// What the swizzle flips in an offset within a block of columns.
template <typename T>
__device__ constexpr uint32_t Swizzled(uint32_t offset) {
  return offset >> 3 & (T::kSwizzle == Swizzle::k128 ? 0x70u : 0x30u);
}

// Byte offset of element (row, column) in a tile in shared memory whose blocks of columns take so many bytes.
template <typename T, int kBlockBytes>
__device__ inline uint32_t TileOffset(int row, int column) {
  const uint32_t offset = row * T::kRowBytes + column % T::kBlockColumns * 2;
  return column / T::kBlockColumns * kBlockBytes + (offset ^ Swizzled<T>(offset));
}

// --- the careful pass: values of v that are not finite in a tile that some rows see in part ---

// Bits that are all ones in an element that is not finite.
template <typename Element>
inline constexpr uint32_t kExponentMask = std::is_same_v<Element, __half> ? 0x7c00u : 0x7f80u;

template <typename Element>
__device__ inline float Widen(uint32_t bits) {
  const uint16_t half_word = static_cast<uint16_t>(bits);
  Element value;
  memcpy(&value, &half_word, sizeof(value));
  return static_cast<float>(value);
}

// Adds to the output what visible keys with a value that is not finite contribute: that value.
template <typename T, int kCount>
__device__ inline void AddNotFinite(float (&o)[kCount], const uint8_t* v, const Group& g, int row,
                                    int first_key, int lane) {
  using Element = typename T::Element;
  constexpr uint32_t kMask = kExponentMask<Element>;
  const RowKeys visible[2] = {KeysOfRow(g, row), KeysOfRow(g, row + 8)};
#pragma unroll 1
  for (int key = 0; key < T::kKeys; ++key) {
    const int j = first_key + key;
    const bool seen[2] = {j >= visible[0].low && j < visible[0].high,
                          j >= visible[1].low && j < visible[1].high};
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(
          v + TileOffset<T, T::kKeyBlockBytes>(key, 8 * i + 2 * (lane % 4)));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t bits = pair >> (16 * e) & 0xffffu;
        if ((bits & kMask) != kMask) continue;
        if (seen[0]) o[4 * i + e] += Widen<Element>(bits);
        if (seen[1]) o[4 * i + 2 + e] += Widen<Element>(bits);
      }
    }
  }
}

// Overwrites what is not finite with zeros; thread `index` of `threads`.
template <typename T>
__device__ inline void ZeroNotFinite(uint8_t* v, int index, int threads) {
  constexpr uint32_t kMask = kExponentMask<typename T::Element>;
  uint32_t* words = reinterpret_cast<uint32_t*>(v);
  for (int i = index; i < T::kTileBytes / 4; i += threads) {
    uint32_t word = words[i];
    if ((word & kMask) == kMask) word &= 0xffff0000u;
    if ((word >> 16 & kMask) == kMask) word &= 0x0000ffffu;
    words[i] = word;
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_SCORES_H_
