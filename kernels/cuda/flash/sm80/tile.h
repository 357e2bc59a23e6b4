// Tile shapes of the portable FLASH kernels, and the shared memory that they take. Host and device.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_TILE_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_TILE_H_

#include <cstdint>

#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {

// The most shared memory that one CTA may take on sm_86 and sm_89.
inline constexpr int kSharedBytesMax = 101376;

// kHeadDim: the larger of the two head_dims, rounded up to a class.
// kRowWarps x kKeyWarps warps: row warps take kRowTiles * 16 rows of queries each; key warps share a tile
// of kKeys keys among them, each with a softmax state of its own, merged at the end.
// kSlots: tiles of K and V (alternating) that the ring in shared memory holds.
// kQueryInRegisters: Q is read into registers once and needs no shared memory of its own.
template <int kHeadDim_, int kRowWarps_, int kKeyWarps_, int kRowTiles_, int kKeys_, int kSlots_,
          bool kQueryInRegisters_, int kBlocksPerSm_>
struct Tile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowWarps = kRowWarps_;
  static constexpr int kKeyWarps = kKeyWarps_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kSlots = kSlots_;
  static constexpr bool kQueryInRegisters = kQueryInRegisters_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;

  static constexpr int kWarps = kRowWarps * kKeyWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kRowWarps * kRowTiles * 16;
  static constexpr int kWarpKeys = kKeys / kKeyWarps;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kSlotBytes = kKeys * kRowBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kOutBytes = kKeyWarps * kRows * kHeadDim * 4;  // fp32, over the ring

  static_assert(kWarpKeys % 16 == 0, "a warp's keys are the k dimension of its second product");
  static_assert(kOutBytes <= kSlots * kSlotBytes, "the epilogue stages its output in the ring");
  static_assert(!kQueryInRegisters || kQueryBytes <= kSlotBytes, "Q passes through the last slot");
};

// What one CTA does.
struct CtaWork {
  int kv_head;
  int split;
  int row_begin;             // first packed row
  int key_begin, key_end;    // keys that some row of the tile sees, within the split
  int full_begin, full_end;  // those that every row sees
  int first_key, key_tiles;  // tiles of keys, from a multiple of kKeys on
  int64_t split_row;         // of the first packed row, in the partial states
};

// The K or V of one KV head. Both 16-bit types are copied as they lie.
struct KeySource {
  const uint16_t* base;  // of this head
  int64_t token_stride;
  int64_t page_stride;
  const int32_t* page_table;  // null: not paged
  int32_t page_shift;
  int32_t dim;
  int32_t vectors;
};

// The shared memory of a CTA, in this order. Row fields: query rows of this CTA's tile.
template <typename Tile>
struct Shared {
  alignas(128) unsigned char ring[Tile::kSlots * Tile::kSlotBytes];
  alignas(128) unsigned char q[Tile::kQueryInRegisters ? 16 : Tile::kQueryBytes];
  FlashProblem problem;
  CtaWork work;
  KeySource sources[2];            // K, V
  int32_t row_token[Tile::kRows];  // -1: no such row
  int32_t row_head[Tile::kRows];
  int32_t row_begin[Tile::kRows], row_end[Tile::kRows];  // keys that the row sees by causal and window
  float row_lse[Tile::kRows];                            // of a split: the sum
  // Softmax states that the key warps exchange at the end; a lone one has nothing to exchange.
  float warp_max[Tile::kKeyWarps][Tile::kKeyWarps > 1 ? Tile::kRows : 1];
  float warp_sum[Tile::kKeyWarps][Tile::kKeyWarps > 1 ? Tile::kRows : 1];
};

// Prefill: two 16-row tiles a warp halve the reads of K and V from shared memory; from head_dim 192 on the
// accumulators leave no room for that. With score modifiers, head_dim 128 keeps its registers by tiles of
// fewer keys.
template <int kHeadDim, bool kFeatures>
struct PrefillTileOf;
template <bool kFeatures>
struct PrefillTileOf<64, kFeatures> : Tile<64, 4, 1, 2, 64, 4, false, 2> {};
template <bool kFeatures>
struct PrefillTileOf<96, kFeatures> : Tile<96, 4, 1, 2, 64, 4, false, 2> {};
template <>
struct PrefillTileOf<128, false> : Tile<128, 4, 1, 2, 64, 4, false, 2> {};
template <>
struct PrefillTileOf<128, true> : Tile<128, 4, 1, 2, 32, 8, false, 2> {};
template <bool kFeatures>
struct PrefillTileOf<192, kFeatures> : Tile<192, 4, 1, 1, 64, 2, false, 2> {};
template <bool kFeatures>
struct PrefillTileOf<256, kFeatures> : Tile<256, 4, 1, 1, 64, 2, false, 2> {};

// Decode: 16 rows, four warps side by side along the keys, and as many bytes on their way as fit. At head_dim
// 128, three smaller CTAs on a multiprocessor hide each other's start and end better than two.
template <int kHeadDim>
struct DecodeTileOf;
template <>
struct DecodeTileOf<64> : Tile<64, 1, 4, 1, 128, 6, true, 2> {};
template <>
struct DecodeTileOf<96> : Tile<96, 1, 4, 1, 64, 8, true, 2> {};
template <>
struct DecodeTileOf<128> : Tile<128, 1, 4, 1, 64, 4, true, 3> {};
template <>
struct DecodeTileOf<192> : Tile<192, 1, 4, 1, 64, 4, true, 2> {};
template <>
struct DecodeTileOf<256> : Tile<256, 1, 4, 1, 64, 3, true, 2> {};

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_TILE_H_
