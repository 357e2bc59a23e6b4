#include "kernels/cuda/prepare_launch.h"

#include <cuda_runtime_api.h>

#include <map>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/status.h"

namespace attend::cuda {
namespace {

struct Prepared {
  int shared_bytes = 0;  // the limit that was set
  bool early = false;
};

// By kernel and device.
using PreparedKernels = std::map<std::pair<const void*, int>, Prepared>;

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);

PreparedKernels& Kernels() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  static auto& kernels = *new PreparedKernels;
  return kernels;
}

}  // namespace

absl::Status PrepareLaunch(const void* kernel, int shared_bytes, bool* early) {
  int device = 0;
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  absl::MutexLock lock(&mutex);
  auto known = Kernels().find({kernel, device});
  if (known == Kernels().end()) {
    cudaFuncAttributes compiled;
    ATTEND_CUDA_RETURN_IF_ERROR(cudaFuncGetAttributes(&compiled, kernel));
    const Prepared prepared = {.shared_bytes = 0, .early = compiled.ptxVersion >= 90};
    known = Kernels().emplace(std::pair(kernel, device), prepared).first;
  }
  Prepared& prepared = known->second;
  if (shared_bytes > prepared.shared_bytes) {
    ATTEND_CUDA_RETURN_IF_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    prepared.shared_bytes = shared_bytes;
  }
  *early = prepared.early;
  return absl::OkStatus();
}

}  // namespace attend::cuda
