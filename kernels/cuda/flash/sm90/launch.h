// Host side of one kernel instantiation.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_LAUNCH_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_LAUNCH_H_

#include "absl/status/status.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/tiles.h"

namespace attend::cuda::sm90 {

// Launches the kernel for elements of 16 bits, with a padded head_dim and its tile of that kind, on
// `blocks` blocks. groups: shape.group_count of them, or ignored where shape.list is set. One
// instantiation unit per pair of element and head_dim defines it.
template <typename Element, int kHeadDim>
absl::Status LaunchFlash(const Shape& shape, const Group* groups, TileKind kind, int blocks, Stream stream);

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_LAUNCH_H_
