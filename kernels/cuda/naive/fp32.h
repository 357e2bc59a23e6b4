// EnqueueScores and EnqueueWeightedSum (matrices.h) in fp32. kDim: flash_fp32::PaddedDim(launch).
#ifndef ATTEND_KERNELS_CUDA_NAIVE_FP32_H_
#define ATTEND_KERNELS_CUDA_NAIVE_FP32_H_

#include "absl/status/status.h"
#include "kernels/cuda/naive/matrices.h"

namespace attend::cuda::naive {

template <int kDim>
absl::Status EnqueueFp32Scores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream);
template <int kDim>
absl::Status EnqueueFp32WeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                    const Matrices& m, Stream stream);

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_FP32_H_
