// FLASH in fp32 on tensor cores, on every chip from compute capability 8.0 on; tile.h says how.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_

#include "absl/status/status.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda::flash_fp32 {

// For variants.cc.
extern const Variant kVariant;

// The two kernels. tiles: what the first writes and the second reads, each problem's from its item's offset
// on.
absl::Status EnqueueSplit(const Launch& launch, const ProblemList& list, int64_t blocks, void* tiles,
                          Stream stream);
// kDim: PaddedDim(launch).
template <int kDim>
absl::Status EnqueueFlash(const Launch& launch, const ProblemList& list, int64_t blocks, const void* tiles,
                          Stream stream);

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_
