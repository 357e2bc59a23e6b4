#include "kernels/cuda/flash/sm80/prefill.cuh"

namespace attend::cuda::flash {
template cudaError_t LaunchPrefill<__half, 64>(const FlashArgs&, bool, int, cudaStream_t);
}  // namespace attend::cuda::flash
