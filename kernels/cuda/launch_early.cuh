// Launches that take their place on the chip while the kernel before them on the stream still runs
// (programmatic dependent launch, from compute capability 9.0 on): the few microseconds between two kernels
// that depend on each other are hidden.
//
// A kernel so launched calls WaitForLaunchBefore() before it touches memory that anything before it on the
// stream writes or reads, and the kernel before it AllowNextLaunch() where the next may start to take place.
#ifndef ATTEND_KERNELS_CUDA_LAUNCH_EARLY_CUH_
#define ATTEND_KERNELS_CUDA_LAUNCH_EARLY_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/prepare_launch.h"
#include "kernels/cuda/status.h"

namespace attend::cuda {

// Waits until the kernel before this one on the stream has ended and its writes are visible.
__device__ inline void WaitForLaunchBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void AllowNextLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// kernel<<<blocks, threads, shared_bytes, stream>>>(args...), early where its code knows how to wait.
template <typename... Parameters>
absl::Status LaunchEarly(void (*kernel)(Parameters...), int64_t blocks, int threads, int shared_bytes,
                         Stream stream, const std::type_identity_t<Parameters>&... args) {
  const void* function = reinterpret_cast<const void*>(kernel);
  bool early = false;
  if (auto s = PrepareLaunch(function, shared_bytes, &early); !s.ok()) return s;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  // By address, because parameters are of up to 32 KB; nothing writes to them.
  void* pointers[] = {const_cast<Parameters*>(&args)...};
  ATTEND_CUDA_RETURN_IF_ERROR(cudaLaunchKernelExC(&config, function, pointers));
  return absl::OkStatus();
}

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_LAUNCH_EARLY_CUH_
