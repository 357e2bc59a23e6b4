#include "kernels/cuda/flash/decode/decode.cuh"

namespace attend::cuda::flash {
template cudaError_t LaunchDecode<__nv_bfloat16, 96>(const FlashArgs&, bool, int, cudaStream_t);
}  // namespace attend::cuda::flash
