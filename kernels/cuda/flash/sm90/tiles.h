// Tile shapes by padded head_dim: plain constants that host and device share.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_

#include <cstdint>

namespace attend::cuda::sm90 {

// Tiles that one head_dim has. A problem walks the one that PlanLaunches picks.
enum class TileKind {
  kWide,      // as many columns as registers and shared memory hold
  kNarrow,    // where masks cut tiles at an angle, or wide ones would cover many keys in vain
  kFew,       // few rows, in blocks small enough that a multiprocessor holds two
  kModified,  // scores pass through softcap, ALiBi or a scale that is not positive, which takes registers
};

struct Tile {
  int consumers;     // warpgroups of 64 query rows
  int keys;          // columns
  int key_stages;    // of K in shared memory
  int value_stages;  // of V
  int query_stages;  // of Q
  int blocks = 1;    // per multiprocessor

  constexpr int rows() const { return 64 * consumers; }
  friend constexpr bool operator==(const Tile&, const Tile&) = default;
};

// The head_dim that the kernel computes with: the next of 64, 96, 128, 192, 256.
constexpr int PaddedHeadDim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : head_dim <= 192 ? 192 : 256;
}

constexpr Tile TileOf(int padded_head_dim, TileKind kind) {
  switch (padded_head_dim) {
    case 64:
      if (kind == TileKind::kFew)
        return {
            .consumers = 1, .keys = 128, .key_stages = 2, .value_stages = 2, .query_stages = 1, .blocks = 2};
      return {.consumers = kind == TileKind::kModified ? 2 : 3,
              .keys = 128,
              .key_stages = 4,
              .value_stages = 4,
              .query_stages = 2};
    case 96:
      return {.consumers = 2, .keys = 160, .key_stages = 2, .value_stages = 2, .query_stages = 2};
    case 128:
      if (kind == TileKind::kFew)
        return {
            .consumers = 1, .keys = 64, .key_stages = 2, .value_stages = 2, .query_stages = 2, .blocks = 2};
      if (kind == TileKind::kWide)
        return {.consumers = 2, .keys = 160, .key_stages = 2, .value_stages = 2, .query_stages = 2};
      // A third stage of V, because P·V of one tile is still in flight when that of the next is issued.
      return {.consumers = 2, .keys = 128, .key_stages = 2, .value_stages = 3, .query_stages = 2};
    case 192:
      return {.consumers = 2, .keys = 112, .key_stages = 2, .value_stages = 2, .query_stages = 1};
    default:
      return {.consumers = 2, .keys = 80, .key_stages = 2, .value_stages = 2, .query_stages = 1};
  }
}

// Keys of whole tiles that cover a sequence.
constexpr int64_t Covered(int64_t kv_len, int keys) { return (kv_len + keys - 1) / keys * keys; }

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_
