// How the portable FLASH kernels cut a problem: tiles and splits. Pure host code, tested without a GPU.
// Everything here is a function of the problem, its dtype and head_dims alone, so that the bits of an
// answer do not depend on what shares the launch, nor on the chip.
#ifndef ATTEND_KERNELS_CUDA_FLASH_HEURISTICS_H_
#define ATTEND_KERNELS_CUDA_FLASH_HEURISTICS_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/work.h"

namespace attend::cuda::flash {

// kPrefill: tiles of 64 or 128 rows, one CTA per tile and KV head. kDecode: tiles of 16 rows.
enum class Path { kPrefill, kDecode };

// The most packed rows (query tokens x query heads of a KV head) that kDecode is meant for: each 16 of them
// read K and V once, the later ones out of L2.
inline constexpr int64_t kDecodeRowsMax = 32;

// Query tokens x query heads per KV head.
inline int64_t PackedRows(const Problem& p) { return p.q_len * (p.q_heads / p.kv_heads); }

// The class of head_dim that a kernel is compiled for: 64, 96, 128, 192 or 256.
int HeadDimClass(int32_t head_dim, int32_t v_head_dim);

// Whether the problem modifies scores by more than scale, causal mask and window: softcap, bias, mask, ALiBi.
bool HasFeatures(const Problem& problem);

// Rows and keys of a tile.
TileShape TileOf(Path path, int head_dim_class, bool features);

// A problem's CTAs: row_tiles x splits x kv_heads.
struct Cut {
  int64_t row_tiles = 0;
  int64_t keys_begin = 0;  // first key of split 0, a multiple of the tile's keys
  int64_t split_keys = 0;  // a multiple of the tile's keys
  int64_t splits = 1;
};
Cut CutProblem(Path path, const Launch& launch, const Problem& problem);

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_HEURISTICS_H_
