#include "kernels/cuda/flash/sm90/instantiate.h"

namespace attend::cuda::sm90 {
template absl::Status LaunchFlash<__nv_bfloat16, 192>(const Shape&, const Group*, TileKind, int, Stream);
}  // namespace attend::cuda::sm90
