// NAIVE: attention as it is written down, every intermediate in device memory. Scores; maximum; exp; sum;
// divide; weighted sum: six kernels, eight passes over an fp32 matrix of q_heads x q_len x kv_len.
// And ONLINE, which writes the same matrix once and reads it twice.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_NAIVE_H_
#define ATTEND_KERNELS_CUDA_NAIVE_NAIVE_H_

#include "absl/status/status.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda::naive {

// For variants.cc.
extern const Variant kNaiveVariant;
extern const Variant kOnlineVariant;

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_NAIVE_H_
