// Splitting of scaled fp32 values into fp16 parts.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_SPLIT_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_SPLIT_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/flash/fp32/tile.h"

namespace attend::cuda::flash_fp32 {

// Two values in each: x = hi + lo / 2^11.
struct HalfParts {
  uint32_t hi, lo;
};
__device__ inline HalfParts Split(float x, float y) {
  const __half2 hi = __floats2half2_rn(x, y);
  const float2 back = __half22float2(hi);
  const __half2 lo = __floats2half2_rn((x - back.x) * kLoScale, (y - back.y) * kLoScale);
  return {*reinterpret_cast<const uint32_t*>(&hi), *reinterpret_cast<const uint32_t*>(&lo)};
}

// The exponent bits of |x|: 255 for what is not finite, 0 for zeros and denormals.
__device__ inline int ExponentBits(float x) { return (__float_as_int(x) >> 23) & 255; }

// Values whose largest exponent is this are multiplied with `to` before the split (the largest becomes 2^14
// to 2^15) and their products with `from` after. NaN where a value is not finite: everything it meets
// becomes NaN, and the rows that see it are computed again.
struct Scaling {
  float to, from;
};
__device__ inline Scaling ScalingOf(int exponent_bits) {
  if (exponent_bits == 255) return {__int_as_float(0x7fffffff), 1.0f};
  const int exponent = max(exponent_bits - 127, -100);
  return {__int_as_float((127 + 14 - exponent) << 23), __int_as_float((127 - 14 + exponent) << 23)};
}

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_SPLIT_CUH_
