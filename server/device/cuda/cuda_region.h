// Memory that CUDA allocates, as a pool's region. The pool never touches what it hands out, so that it
// serves memory of the GPU as well as pinned memory.
#ifndef ATTEND_SERVER_DEVICE_CUDA_CUDA_REGION_H_
#define ATTEND_SERVER_DEVICE_CUDA_CUDA_REGION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/cuda/cuda_api.h"
#include "server/memory/host_region.h"

namespace attend::server {

// Pinned host memory that every GPU copies from and to at full speed. size is rounded up to whole pages.
// RESOURCE_EXHAUSTED where it cannot be had.
absl::StatusOr<std::unique_ptr<HostRegion>> AllocatePinnedRegion(std::shared_ptr<CudaApi> api, int64_t size);
// Memory of the GPU, addressed by it alone.
absl::StatusOr<std::unique_ptr<HostRegion>> AllocateDeviceRegion(std::shared_ptr<CudaApi> api, int64_t size);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_CUDA_REGION_H_
