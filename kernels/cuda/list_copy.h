// Work lists to the device, in the order of the stream.
#ifndef ATTEND_KERNELS_CUDA_LIST_COPY_H_
#define ATTEND_KERNELS_CUDA_LIST_COPY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_attention.h"

namespace attend::cuda {

// Enqueues a copy of a work list from pinned host memory, which must live until the stream has passed it.
// bytes: a multiple of 4; both pointers 16-byte aligned. A short list travels in the parameters of kernels: a
// copy engine's start and its hand-over to the kernels take longer than a short decode's reading.
absl::Status EnqueueListCopy(void* device, const void* host, int64_t bytes, Stream stream);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_LIST_COPY_H_
