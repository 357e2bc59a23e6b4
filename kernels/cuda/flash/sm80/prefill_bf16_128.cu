#include "kernels/cuda/flash/sm80/prefill.cuh"

namespace attend::cuda::flash {
template cudaError_t LaunchPrefill<__nv_bfloat16, 128>(const FlashArgs&, bool, int, cudaStream_t);
}  // namespace attend::cuda::flash
