// Copies between pinned host memory and a GPU, many at once.
#ifndef ATTEND_SERVER_DEVICE_CUDA_TRANSFERS_H_
#define ATTEND_SERVER_DEVICE_CUDA_TRANSFERS_H_

#include <cuda_runtime_api.h>

#include <span>

#include "server/device/cuda/cuda_api.h"

namespace attend::server {

// Enqueues the transfers on a stream of the current device, which is not the default stream. A copy engine
// takes its time for each copy, however small: many small ones are made by a kernel, whose loads and stores
// go over PCIe by themselves, and many larger ones are handed over in one call where the runtime has one.
cudaError_t EnqueueTransfers(std::span<const CudaApi::Transfer> transfers, cudaStream_t stream);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_TRANSFERS_H_
