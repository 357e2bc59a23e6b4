// FLASH in fp32 on tensor cores, on every chip from compute capability 8.0 on; tile.h says how.
#ifndef ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_
#define ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_

#include "absl/status/status.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda::flash_fp32 {

// For variants.cc.
extern const Variant kVariant;

// The first kernel: k and v of every problem, split into tiles of so many bytes in all; NAIVE and ONLINE
// multiply by the same tiles. Carves the tiles and a list.
int64_t SplitBytes(const Launch& launch);
// Of one problem: problems' tiles follow each other.
int64_t SplitBytes(const Launch& launch, const Problem& problem);
absl::Status EnqueueSplit(const Launch& launch, Carver& carver, Stream stream, const char** tiles);

// The second, over these tiles; each problem's begin at its item's offset.
// kDim: PaddedDim(launch). kGroups: of the tile.
template <int kDim, int kGroups>
absl::Status EnqueueFlash(const Launch& launch, const ProblemList& list, int64_t blocks, const char* tiles,
                          Stream stream);

}  // namespace attend::cuda::flash_fp32

#endif  // ATTEND_KERNELS_CUDA_FLASH_FP32_FLASH_FP32_H_
