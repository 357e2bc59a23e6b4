#include "kernels/cuda/naive/fp32.cuh"

namespace attend::cuda::naive {
template absl::Status EnqueueFp32Scores<256>(const Launch&, const WorkList&, const Matrices&, Stream);
template absl::Status EnqueueFp32WeightedSum<256>(const Launch&, bool, const WorkList&, const Matrices&,
                                                  Stream);
}  // namespace attend::cuda::naive
