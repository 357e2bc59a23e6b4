// FLASH for Hopper (compute capability 9.0): tensor copies, warpgroup-wide products, warp specialisation.
// fp16 and bf16, everything but bias, boolean mask and page table.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_FLASH_SM90_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_FLASH_SM90_H_

#include "kernels/cuda/variant.h"

namespace attend::cuda::flash_sm90 {

extern const Variant kVariant;

}  // namespace attend::cuda::flash_sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_FLASH_SM90_H_
