#include "kernels/cuda/flash/decode/decode.cuh"

namespace attend::cuda::flash {
template cudaError_t LaunchDecode<__half, 64>(const FlashArgs&, bool, int, cudaStream_t);
}  // namespace attend::cuda::flash
