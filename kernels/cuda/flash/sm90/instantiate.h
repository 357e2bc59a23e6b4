// Body of the instantiation units: the kernels of one element and head_dim.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_

#include <algorithm>

#include "absl/status/status.h"
#include "kernels/cuda/flash/sm90/kernel.h"
#include "kernels/cuda/flash/sm90/launch.h"
#include "kernels/cuda/launch_early.cuh"

namespace attend::cuda::sm90 {

template <typename T, int kGroups>
absl::Status LaunchWith(const Shape& shape, const Group* groups, int blocks, Stream stream) {
  Params<kGroups> params;
  params.shape = shape;
  if (shape.list == nullptr) std::copy_n(groups, std::min(shape.group_count, kGroups), params.groups);
  return LaunchEarly(FlashKernel<T, kGroups>, blocks, T::kThreads, sizeof(SharedPlan<T>), stream, params);
}

template <typename T>
absl::Status LaunchTraits(const Shape& shape, const Group* groups, int blocks, Stream stream) {
  const bool few = shape.list == nullptr && shape.group_count <= kFewGroups;
  return few ? LaunchWith<T, kFewGroups>(shape, groups, blocks, stream)
             : LaunchWith<T, kManyGroups>(shape, groups, blocks, stream);
}

template <typename Element, int kHeadDim>
absl::Status LaunchFlash(const Shape& shape, const Group* groups, TileKind kind, int blocks, Stream stream) {
  constexpr Tile kNarrow = TileOf(kHeadDim, TileKind::kNarrow);
  constexpr Tile kWide = TileOf(kHeadDim, TileKind::kWide);
  constexpr Tile kFew = TileOf(kHeadDim, TileKind::kFew);
  constexpr Tile kModified = TileOf(kHeadDim, TileKind::kModified);
  switch (kind) {
    case TileKind::kNarrow:
      return LaunchTraits<Traits<Element, kHeadDim, kNarrow, false>>(shape, groups, blocks, stream);
    case TileKind::kWide:
      return LaunchTraits<Traits<Element, kHeadDim, kWide, false>>(shape, groups, blocks, stream);
    case TileKind::kFew:
      return LaunchTraits<Traits<Element, kHeadDim, kFew, false>>(shape, groups, blocks, stream);
    case TileKind::kModified:
      break;
  }
  return LaunchTraits<Traits<Element, kHeadDim, kModified, true>>(shape, groups, blocks, stream);
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_
