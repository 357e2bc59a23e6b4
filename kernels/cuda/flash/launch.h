// Host entry points of the kernels, one set per element type and class of head_dim. Each returns the error of
// the launch.
#ifndef ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_
#define ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {

template <typename T, int kHeadDim>
cudaError_t LaunchPrefill(const FlashArgs& args, bool features, int ctas, cudaStream_t stream);

template <typename T, int kHeadDim>
cudaError_t LaunchDecode(const FlashArgs& args, bool features, int ctas, cudaStream_t stream);

// T: what out holds. Follows the attention kernel on the stream, and starts while that still runs.
template <typename T>
absl::Status LaunchCombine(const FlashArgs& args, int ctas, cudaStream_t stream);

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_
