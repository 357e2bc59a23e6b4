// The portable FLASH variants for fp16 and bf16: prefill (sm80/) and decode (decode/), which share one kernel
// with different tiles. Every feature of kernels/attention.h, on every chip from sm_80 on.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FLASH_H_
#define ATTEND_KERNELS_CUDA_FLASH_FLASH_H_

#include "kernels/cuda/variant.h"

namespace attend::cuda::flash {

// Few query tokens: at most kDecodeRowsMax rows once the heads of a KV head are packed.
extern const Variant kDecodeVariant;
// Everything else.
extern const Variant kPrefillVariant;

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_FLASH_H_
