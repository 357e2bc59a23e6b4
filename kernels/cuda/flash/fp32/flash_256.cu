#include "kernels/cuda/flash/fp32/kernel.cuh"

namespace attend::cuda::flash_fp32 {
template absl::Status EnqueueFlash<256, 1>(const Launch&, const ProblemList&, int64_t, const char*, Stream);
}  // namespace attend::cuda::flash_fp32
