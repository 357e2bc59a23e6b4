// Body of the instantiation units: the kernels of one element and head_dim.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/cuda/flash/sm90/kernel.h"
#include "kernels/cuda/flash/sm90/launch.h"

namespace attend::cuda::sm90 {

// Raises the kernel's shared-memory limit, once per device.
template <typename T, int kGroups>
cudaError_t AllowSharedMemory() {
  static std::atomic<uint64_t> devices_done{0};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (device < 64 && (devices_done.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      FlashKernel<T, kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedPlan<T>));
  if (error == cudaSuccess) devices_done.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

template <typename T, int kGroups>
cudaError_t LaunchWith(const Shape& shape, const Group* groups, int blocks, cudaStream_t stream) {
  if (const cudaError_t error = AllowSharedMemory<T, kGroups>(); error != cudaSuccess) return error;
  Params<kGroups> params;
  params.shape = shape;
  if (shape.list == nullptr) std::copy_n(groups, std::min(shape.group_count, kGroups), params.groups);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(T::kThreads);
  config.dynamicSmemBytes = sizeof(SharedPlan<T>);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, FlashKernel<T, kGroups>, params);
}

template <typename T>
cudaError_t LaunchTraits(const Shape& shape, const Group* groups, int blocks, cudaStream_t stream) {
  const bool few = shape.list == nullptr && shape.group_count <= kFewGroups;
  return few ? LaunchWith<T, kFewGroups>(shape, groups, blocks, stream)
             : LaunchWith<T, kManyGroups>(shape, groups, blocks, stream);
}

template <typename Element, int kHeadDim>
cudaError_t LaunchFlash(const Shape& shape, const Group* groups, TileKind kind, bool modified, int blocks,
                        cudaStream_t stream) {
  constexpr Tile kNarrow = TileOf(kHeadDim, TileKind::kNarrow);
  constexpr Tile kWide = TileOf(kHeadDim, TileKind::kWide);
  if (modified) return LaunchTraits<Traits<Element, kHeadDim, kNarrow, true>>(shape, groups, blocks, stream);
  if (kind == TileKind::kNarrow) {
    return LaunchTraits<Traits<Element, kHeadDim, kNarrow, false>>(shape, groups, blocks, stream);
  }
  constexpr Tile kFew = TileOf(kHeadDim, TileKind::kFew);
  if (kind == TileKind::kFew) {
    return LaunchTraits<Traits<Element, kHeadDim, kFew, false>>(shape, groups, blocks, stream);
  }
  return LaunchTraits<Traits<Element, kHeadDim, kWide, false>>(shape, groups, blocks, stream);
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_INSTANTIATE_H_
