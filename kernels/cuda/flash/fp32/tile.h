// FLASH in fp32: what its two kernels agree on.
//
// Tensor cores have no fp32 product, but a product of fp16 parts is exact: with x = 2^e (hi + lo / 2^11),
// hi and lo of 11 bits each, a·b takes three fp16 products (hi·hi; hi·lo + lo·hi) and keeps 22 bits, at
// twice the speed of the same split in tf32 (Ootomo and Yokota 2022, arXiv:2203.03341). fp16's short
// exponent is the price: rows of q and k are scaled by a power of two each, v by one for each column and
// tile. What one such exponent cannot hold (values 2^28 apart in one tile, say) takes a tf32 path.
//
// A first kernel splits k and v once, into tiles in the workspace that lie as shared memory wants them; the
// second is flash attention over these tiles. Splitting costs a pass over k and v; each tile is then read
// by every block of query rows.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_TILE_H_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_TILE_H_

#include <cstdint>

#include "kernels/attention.h"

namespace attend::cuda::flash_fp32 {

// Groups of 16 query rows of a warp: two halve the traffic of shared memory, where registers allow it.
constexpr int MostGroups(int dim) { return dim <= 64 ? 2 : 1; }

// kDim: head_dim and v_head_dim, padded with zeros to the same.
template <int kHeadDim, int kRowGroups = MostGroups(kHeadDim)>
struct Tile {
  static constexpr int kDim = kHeadDim;
  static constexpr int kKeys = kDim <= 128 ? 64 : 16;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kGroups = kRowGroups;
  static constexpr int kRows = kWarps * 16 * kGroups;

  // A part (hi or lo) of a tile of k or v: [kKeys][kDim] fp16, 16-byte chunks swizzled.
  static constexpr int kPartBytes = kKeys * kDim * 2;
  // k: hi, lo, float scale[kKeys], the largest |k|. v: hi, lo, float scale[kDim], 1 where it is wide.
  // scale is what hi + lo / 2^11 is to be multiplied with.
  static constexpr int kKeyBytes = 2 * kPartBytes + (kKeys + 4) * 4;
  static constexpr int kValueBytes = 2 * kPartBytes + (kDim + 4) * 4;
  static constexpr int kBytes = kKeyBytes + kValueBytes;
};

constexpr int PaddedDim(const Launch& launch) {
  const int32_t dim = launch.head_dim > launch.v_head_dim ? launch.head_dim : launch.v_head_dim;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

// Byte offset of an element's 16-byte chunk of 8 in rows of kDim fp16.
template <int kDim>
constexpr int ChunkOffset(int row, int chunk) {
  return row * kDim * 2 + (chunk ^ (row & 7)) * 16;
}

inline constexpr float kLoScale = 2048.0f;
inline constexpr float kLoInverse = 1.0f / 2048.0f;
// Above this bound on |score| the 2^-22 of a score's error may matter where q and k hold values of very
// different size: such tiles are multiplied in tf32, which scales each value by itself.
inline constexpr float kScoreBoundMax = 67108864.0f;
// Binary orders of magnitude between values of one column of v that 22 bits each can hold.
inline constexpr int kWideExponents = 28;

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_TILE_H_
