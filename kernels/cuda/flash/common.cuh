// What the attention kernel and the one that combines splits share on the device.
#ifndef ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_

#include <cstdint>

#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/score.cuh"

namespace attend::cuda::flash {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2E = 1.4426950408889634f;

// The last group whose first CTA is at or before this one; a warp looks at 32 at a time.
__device__ inline int FindGroup(const int32_t* first_cta, int count, int cta) {
  int begin = 0;
  while (count > 1) {
    const int step = (count + 31) / 32;
    const int i = static_cast<int>(threadIdx.x % 32) * step;
    const unsigned passed = __ballot_sync(kAllLanes, i < count && first_cta[begin + i] <= cta);
    const int skip = (__popc(passed) - 1) * step;
    begin += skip;
    count = min(step, count - skip);
  }
  return begin;
}

template <typename T>
__device__ inline void Advance(T*& pointer, int64_t bytes) {
  pointer = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
}

// Where problem i of a group leaves the states of its splits.
__device__ inline int64_t FirstSplitRow(const FlashProblem& p, int i) {
  return int64_t{i} * p.splits * p.kv_heads * p.q_len * p.group;
}

// Makes of a group's first problem its i-th.
__device__ inline void TakeProblem(FlashProblem& p, const Distances& distances, int i) {
  Advance(p.q.data, i * distances.q);
  Advance(p.k.data, i * distances.k);
  Advance(p.v.data, i * distances.v);
  Advance(p.out, i * distances.out);
  if (p.lse != nullptr) Advance(p.lse, i * distances.lse);
  if (p.page_table != nullptr) Advance(p.page_table, i * distances.page_table);
  p.split_out += FirstSplitRow(p, i) * p.v.dim;
  p.split_states += FirstSplitRow(p, i);
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_
