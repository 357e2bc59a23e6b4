// Launches the kernel of kernel.cuh with its shared memory.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_RUN_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_RUN_CUH_

#include <cuda_runtime_api.h>

#include "kernels/cuda/flash/sm80/kernel.cuh"

namespace attend::cuda::flash {

template <typename T, typename Tile, bool kFeatures>
cudaError_t Run(const FlashArgs& args, int ctas, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<Tile>);
  static_assert(kBytes <= kSharedBytesMax);
  const auto kernel = FlashKernel<T, Tile, kFeatures>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  kernel<<<ctas, Tile::kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_RUN_CUH_
