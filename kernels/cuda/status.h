// Turns CUDA errors into absl::Status, the same in debug and release builds. Only for files that see CUDA.
#ifndef ATTEND_KERNELS_CUDA_STATUS_H_
#define ATTEND_KERNELS_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace attend::cuda {

// Internal, with the expression, the place and CUDA's own words; ResourceExhausted for lack of memory.
absl::Status CudaError(cudaError_t error, const char* expression, const char* file, int line);

}  // namespace attend::cuda

// Returns from the enclosing function when a CUDA call fails. After a kernel launch, give it
// cudaGetLastError().
#define ATTEND_CUDA_RETURN_IF_ERROR(expression)                                               \
  do {                                                                                        \
    if (const cudaError_t attend_cuda_error = (expression); attend_cuda_error != cudaSuccess) \
      return ::attend::cuda::CudaError(attend_cuda_error, #expression, __FILE__, __LINE__);   \
  } while (false)

#endif  // ATTEND_KERNELS_CUDA_STATUS_H_
