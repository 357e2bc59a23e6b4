// What one launch of the kernel is told: groups of problems, and the order of their work items.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_PARAMS_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_PARAMS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace attend::cuda::sm90 {

// Lengths are below kLengthMax, so that sums of positions and windows fit 32 bits.
inline constexpr int64_t kLengthMax = int64_t{1} << 29;
inline constexpr int32_t kWindowMax = 1 << 30;  // stands for unbounded

// Problems of one shape whose tensors lie at equal distances: one problem, or a dense batch of them.
struct Group {
  // [batch, head, token, column]: what lies behind a length or a head_dim reads as zero.
  CUtensorMap q, k, v;

  void* out = nullptr;                  // [batch, q_len, q_heads, v_head_dim]; fp32 in a partial launch
  float* lse = nullptr;                 // [batch, q_heads, q_len]; null: not wanted
  const float* sinks = nullptr;         // [batch, q_heads]; null: none
  const float* alibi_slopes = nullptr;  // [batch, q_heads]; null: none
  int64_t out_token_stride = 0, out_head_stride = 0, out_batch_stride = 0;  // elements
  int64_t lse_head_stride = 0, lse_batch_stride = 0;
  int64_t sinks_batch_stride = 0, alibi_batch_stride = 0;

  int32_t q_len = 0, kv_len = 0;
  int32_t q_heads = 0;
  int32_t heads_per_kv_head = 0;
  int32_t diagonal = 0;        // the key that stands beside query 0, for causal mask and windows
  int32_t alibi_diagonal = 0;  // the same for ALiBi: kv_len - q_len whatever the causal alignment
  int32_t window_left = kWindowMax, window_right = kWindowMax;
  float scale = 0.0f;
  // log2(e) * softcap (0: none), -2 times that, and what makes log2(e^2x) of q·k, where x is scale * q·k /
  // softcap. All finite.
  float softcap_log2 = 0.0f, softcap_minus_twice = 0.0f, softcap_factor = 0.0f;

  // Work items of this group are those below item_end that belong to no group before it. Item: one tile of
  // query rows of one head. They come in sections of section_heads (batch, head) pairs; within a section
  // the last tile of every head comes first (the longest, under a causal mask).
  int32_t item_begin = 0, item_end = 0;
  int32_t tiles = 0;          // of query rows, per head
  int32_t heads = 0;          // batch * q_heads
  int32_t section_heads = 1;  // as many as keep their K and V in the L2 cache
};
static_assert(std::is_trivially_copyable_v<Group>);

// What all items share.
struct Shape {
  const Group* list = nullptr;  // the groups, in device memory; null: they travel with the parameters
  // Where blocks claim items beyond their first, in device memory: tag in the upper half, claims so far in
  // the lower one. Any other tag stands for no claims, so that nobody has to clear it before the launch.
  unsigned long long* claims = nullptr;
  uint32_t tag = 0;  // no other launch's
  int32_t group_count = 0;
  int32_t item_count = 0;
  int32_t v_head_dim = 0;
  bool partial = false;  // out in fp32
};

// Kernel parameters. Every launch carries all of them, so that there are two sizes: one group, which a dense
// batch is, and as many as fit 32,764 bytes. Longer lists lie in device memory.
template <int kGroups>
struct Params {
  Shape shape;
  Group groups[kGroups];
};
inline constexpr int kFewGroups = 1;  // never a list: its group is read as a constant
inline constexpr int kManyGroups = 50;
static_assert(sizeof(Params<kManyGroups>) <= 32764);

template <int kGroups>
__host__ __device__ inline const Group& GroupAt(const Params<kGroups>& params, int index) {
  if constexpr (kGroups == kFewGroups) {
    return params.groups[0];
  } else {
    return params.shape.list != nullptr ? params.shape.list[index] : params.groups[index];
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_PARAMS_H_
