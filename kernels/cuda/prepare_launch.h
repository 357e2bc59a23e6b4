// What a kernel has to be told, and what has to be known of it, before it is launched.
#ifndef ATTEND_KERNELS_CUDA_PREPARE_LAUNCH_H_
#define ATTEND_KERNELS_CUDA_PREPARE_LAUNCH_H_

#include "absl/status/status.h"

namespace attend::cuda {

// Before a launch on the current device with that many bytes of dynamic shared memory: raises the kernel's
// limit where it is lower. early: whether its code knows how to wait for the kernel before it
// (launch_early.cuh), which code for chips before compute capability 9.0 does not. Asks the driver once for
// each kernel and device. Thread-safe. An error of CUDA's is returned as status.h says, and leaves early as
// it was.
absl::Status PrepareLaunch(const void* kernel, int shared_bytes, bool* early);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_PREPARE_LAUNCH_H_
