// Merging partial attention states in a GPU's memory: MergePartials (kernels/merge.h) on a stream.
#ifndef ATTEND_KERNELS_CUDA_CUDA_MERGE_H_
#define ATTEND_KERNELS_CUDA_CUDA_MERGE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/merge.h"

namespace attend::cuda {

// Most parts of one merge: what a kernel's parameters hold. Merge longer lists in rounds.
inline constexpr int kMergePartsMax = 128;

// As MergePartials, device memory throughout; returns without waiting. `parts` itself may be freed on
// return. InvalidArgument for no parts or more than kMergePartsMax; Internal for a CUDA error.
absl::Status EnqueueMerge(std::span<const PartialState> parts, int64_t rows, int32_t v_head_dim,
                          DataType dtype, const float* sinks, void* out, float* lse, Stream stream);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_CUDA_MERGE_H_
