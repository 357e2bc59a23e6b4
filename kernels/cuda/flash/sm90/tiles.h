// Tile shapes by padded head_dim: plain constants that host and device share.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_

#include <cstdint>

namespace attend::cuda::sm90 {

struct Tile {
  int consumers;     // warpgroups of 64 query rows
  int stages;        // of K, and of V, in shared memory: a power of two
  int query_stages;  // of Q, likewise
};

// The head_dim that the kernel computes with: the next of 64, 96, 128, 192, 256.
constexpr int PaddedHeadDim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : head_dim <= 192 ? 192 : 256;
}

// Columns of a tile: as many as registers and shared memory hold; fewer where masks cut tiles at an angle.
constexpr int KeysOf(int padded_head_dim, bool narrow) {
  switch (padded_head_dim) {
    case 64:
      return 128;
    case 96:
      return 160;
    case 128:
      return narrow ? 128 : 160;
    case 192:
      return 112;
    default:
      return 80;
  }
}

constexpr Tile TileOf(int padded_head_dim) {
  switch (padded_head_dim) {
    case 64:
      return {.consumers = 3, .stages = 4, .query_stages = 2};
    case 96:
    case 128:
      return {.consumers = 2, .stages = 2, .query_stages = 2};
    default:
      return {.consumers = 2, .stages = 2, .query_stages = 1};
  }
}

// Keys of whole tiles that cover a sequence.
constexpr int64_t Covered(int64_t kv_len, int keys) { return (kv_len + keys - 1) / keys * keys; }

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_TILES_H_
