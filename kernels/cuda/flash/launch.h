// Host entry points of the kernels, one set per element type and class of head_dim. Each returns the error
// of the launch.
#ifndef ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_
#define ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {

template <typename T, int kHeadDim>
cudaError_t LaunchPrefill(const FlashArgs& args, bool features, int ctas, cudaStream_t stream);

template <typename T, int kHeadDim>
cudaError_t LaunchDecode(const FlashArgs& args, bool features, int ctas, cudaStream_t stream);

// T: what out holds. overlap: starts while the attention kernel before it on the stream still runs, and
// waits for its results on the device (sm_90 on).
template <typename T>
cudaError_t LaunchCombine(const FlashArgs& args, int ctas, bool overlap, cudaStream_t stream);

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_LAUNCH_H_
