// What the attention kernel and the one that combines splits share on the device.
#ifndef ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_

#include <cstdint>

#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float MinusInfinity() { return __int_as_float(0xff800000); }

// The last problem whose first CTA is at or before this one; a warp looks at 32 at a time.
__device__ inline int FindProblem(const int32_t* first_cta, int count, int cta) {
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

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_COMMON_CUH_
