// Instantiates prefill for one element type and class of head_dim.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_PREFILL_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_PREFILL_CUH_

#include "kernels/cuda/flash/launch.h"
#include "kernels/cuda/flash/sm80/run.cuh"

namespace attend::cuda::flash {

template <typename T, int kHeadDim>
cudaError_t LaunchPrefill(const FlashArgs& args, bool features, int ctas, cudaStream_t stream) {
  if (features) return Run<T, PrefillTileOf<kHeadDim, true>, true>(args, ctas, stream);
  return Run<T, PrefillTileOf<kHeadDim, false>, false>(args, ctas, stream);
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_PREFILL_CUH_
