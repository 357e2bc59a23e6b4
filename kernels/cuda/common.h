// What Enqueue does around the variants, the same for all of them.
#ifndef ATTEND_KERNELS_CUDA_COMMON_H_
#define ATTEND_KERNELS_CUDA_COMMON_H_

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/problem_list.h"

namespace attend::cuda {

// Whether some output element of the problem is nobody's work: rows behind q_len, rows of a problem without
// keys, columns of all weights behind kv_len.
bool NeedsFill(const Problem& problem);

// Writes them: out = 0, lse = -inf (its sink for rows of a problem without keys), weights = 0.
// Workspace: ListBytes(problems), device and host.
absl::Status EnqueueFill(const Launch& launch, Carver& carver, Stream stream);

// Whether weights of chosen rows are wanted.
inline bool WantsWeightRows(const Problem& p) { return p.weights != nullptr && p.weight_rows != nullptr; }

// Forms the weights of the chosen rows from q, k and the lse of every problem of the launch, in fp32, at
// the cost of one row of FLASH each: weights = exp(s - lse). Workspace: ListBytes(problems).
absl::Status EnqueueWeightRows(const Launch& launch, Carver& carver, Stream stream);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_COMMON_H_
