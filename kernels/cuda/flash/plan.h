// What the portable FLASH kernels read on the device: one problem, reduced to what they need, and how it
// is cut into CTAs. Plain data, filled in by flash.cc.
#ifndef ATTEND_KERNELS_CUDA_FLASH_PLAN_H_
#define ATTEND_KERNELS_CUDA_FLASH_PLAN_H_

#include <cstdint>
#include <type_traits>

namespace attend::cuda::flash {

// A [tokens, heads, dim] tensor, paged or not. Strides in elements.
struct TensorView {
  const void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t page_stride;  // unused where there is no page table
  int32_t dim;
  int32_t vectors;  // 1: every row starts on a 16-byte boundary
};

// The softmax state of one row over the keys of a split: the largest score, and the sum of
// exp((score - max) * unit). Not an lse: next to a score of 1e5, fp32 has no room for a sum's logarithm.
struct SplitState {
  float max;
  float sum;  // 0: the row sees none of these keys
};

// Query heads of one KV head are packed into the rows of a tile: row r is
// token r / group of query head kv_head * group + r % group.
struct alignas(16) FlashProblem {
  TensorView q, k, v;

  void* out;  // [q_len, q_heads, v_head_dim], of the launch's dtype, or fp32 in a partial launch
  int64_t out_token_stride, out_head_stride;
  float* lse;  // [q_heads, >= q_len]; null: not wanted
  int64_t lse_head_stride;

  const int32_t* page_table;  // null: not paged
  int32_t page_shift;         // log2 of tokens in a page
  int32_t out_vectors;        // 1: every row of out starts on a 16-byte boundary

  // Bias, mask: element strides over query head, query token, key. Null where absent.
  const void* bias;
  int64_t bias_head_stride, bias_row_stride, bias_key_stride;
  const uint8_t* mask;
  int64_t mask_head_stride, mask_row_stride, mask_key_stride;
  const float* alibi_slopes;  // [q_heads]
  const float* sinks;         // [q_heads]; null in a partial launch

  int64_t window_left, window_right;  // keys around the diagonal that a query sees; -1: unbounded
  int64_t diagonal;                   // query i's diagonal lies at key i + diagonal
  float scale;
  float softcap;  // 0: none
  // Without score modifiers, kernels leave scores unscaled but for the sign (0 for a scale of 0): the maximum
  // and the order stay right. Scores times unit are natural. With them scores are natural: unit is 1.
  float sign;
  float unit;
  int32_t bias_is_fp32;
  int32_t q_len, kv_len;
  int32_t group;  // query heads per KV head

  // The cut. CTA c of a problem (c from 0) takes row tile row_tiles - 1 - c % row_tiles, then split
  // c / row_tiles % splits, then KV head c / row_tiles / splits.
  int32_t row_tiles;
  int32_t splits;
  int32_t split_keys;  // keys in a split, a multiple of the tile's
  int32_t keys_begin;  // where split 0 begins: a multiple of the tile's keys
  int32_t kv_heads;
  // Partial states of a problem with several splits: out [splits, kv_heads, q_len * group, v_head_dim],
  // normalised, and what it was normalised by, [splits, kv_heads, q_len * group].
  float* split_out;
  SplitState* split_states;
};
static_assert(std::is_trivially_copyable_v<FlashProblem>);

// From a problem of a group (groups.h) to the next, in bytes.
struct Distances {
  int64_t q, k, v, out, lse, page_table;
};

// Problems in a row. The pointers are the first problem's; the i-th's lie i distances further, its partial
// states i times a problem's. Their CTAs follow each other.
struct FlashGroup {
  FlashProblem first;
  Distances distances;
  int64_t count;
};
static_assert(std::is_trivially_copyable_v<FlashGroup>);

// Groups that travel in the kernel's parameters, 4 KB at most; a longer list lies in device memory.
inline constexpr int kInlineGroups = 9;

// The parameters of the attention kernel, and of the one that combines splits.
struct FlashArgs {
  int32_t count;
  int32_t partial;           // 1: out is fp32
  const FlashGroup* groups;  // device memory; null: inline_groups
  // Index of each group's first CTA in the attention's grid and in the combination's (device memory;
  // null: the inline ones). A group with one split has none in the latter.
  const int32_t* first_cta;
  const int32_t* first_combine_cta;
  int32_t inline_first_cta[kInlineGroups];
  int32_t inline_first_combine_cta[kInlineGroups];
  FlashGroup inline_groups[kInlineGroups];
};
static_assert(sizeof(FlashArgs) <= 4000 && std::is_trivially_copyable_v<FlashArgs>);

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_PLAN_H_
