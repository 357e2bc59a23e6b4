#include "kernels/cuda/status.h"

#include "absl/strings/str_cat.h"

namespace attend::cuda {

absl::Status CudaError(cudaError_t error, const char* expression, const char* file, int line) {
  const std::string message = absl::StrCat(file, ":", line, ": ", expression, ": ", cudaGetErrorName(error),
                                           ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace attend::cuda
