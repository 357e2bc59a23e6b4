// Instantiates decode for one element type and class of head_dim: the kernel of sm80/kernel.cuh with tiles
// made for reading K and V as fast as the memory gives them.
#ifndef ATTEND_KERNELS_CUDA_FLASH_DECODE_DECODE_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_DECODE_DECODE_CUH_

#include "kernels/cuda/flash/launch.h"
#include "kernels/cuda/flash/sm80/run.cuh"

namespace attend::cuda::flash {

template <typename T, int kHeadDim>
cudaError_t LaunchDecode(const FlashArgs& args, bool features, int ctas, cudaStream_t stream) {
  if (features) return Run<T, DecodeTileOf<kHeadDim>, true>(args, ctas, stream);
  return Run<T, DecodeTileOf<kHeadDim>, false>(args, ctas, stream);
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_DECODE_DECODE_CUH_
