#include "kernels/cuda/flash/sm90/instantiate.h"

namespace attend::cuda::sm90 {
template cudaError_t LaunchFlash<__nv_bfloat16, 192>(const Shape&, const Group*, TileKind, bool, int,
                                                     cudaStream_t);
}  // namespace attend::cuda::sm90
