#include "kernels/cuda/flash/sm90/instantiate.h"

namespace attend::cuda::sm90 {
template absl::Status LaunchFlash<__half, 96>(const Shape&, const Group*, TileKind, int, Stream);
}  // namespace attend::cuda::sm90
