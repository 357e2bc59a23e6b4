#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/list_copy.h"
#include "kernels/cuda/status.h"

namespace attend::cuda {
namespace {

// Parameters of a kernel: 4 KB, or 32,764 bytes, which take longer to launch.
constexpr int64_t kSmallBytes = 4000;
constexpr int64_t kLargeBytes = 32640;
// Beyond a few kernels a copy engine is as fast.
constexpr int64_t kKernelsMax = 3;
constexpr int kThreads = 256;

template <int64_t kBytes>
struct Payload {
  uint32_t words[kBytes / 4];
};

template <int64_t kBytes>
__global__ void __launch_bounds__(kThreads)
    CopyKernel(const __grid_constant__ Payload<kBytes> payload, uint32_t* to, int words) {
  for (int i = threadIdx.x; i < words; i += kThreads) to[i] = payload.words[i];
}

template <int64_t kBytes>
absl::Status Launch(char* device, const char* host, int64_t bytes, Stream stream) {
  Payload<kBytes> payload;
  std::memcpy(payload.words, host, bytes);
  CopyKernel<kBytes><<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      payload, reinterpret_cast<uint32_t*>(device), static_cast<int>(bytes / 4));
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::Status EnqueueListCopy(void* device, const void* host, int64_t bytes, Stream stream) {
  if (bytes > kKernelsMax * kLargeBytes) {
    ATTEND_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
    return absl::OkStatus();
  }
  for (int64_t done = 0; done < bytes; done += kLargeBytes) {
    char* to = static_cast<char*>(device) + done;
    const char* from = static_cast<const char*>(host) + done;
    const int64_t part = std::min(bytes - done, kLargeBytes);
    const auto launch = part <= kSmallBytes ? Launch<kSmallBytes> : Launch<kLargeBytes>;
    if (auto s = launch(to, from, part, stream); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace attend::cuda
