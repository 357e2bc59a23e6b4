// What stands for the GPUs in a build without CUDA.
#include "server/device/cuda/cuda_api.h"

namespace attend::server {

Gpus RealGpus() {
  const absl::Status none = absl::FailedPreconditionError("this build has no CUDA");
  return {[none] { return none; }, [none](int) { return none; }};
}

}  // namespace attend::server
