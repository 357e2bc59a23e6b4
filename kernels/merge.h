// Merging partial attention states over disjoint key ranges (FlashAttention's split-K; the algebra is
// that of the online softmax, arXiv:1805.02867).
#ifndef ATTEND_KERNELS_MERGE_H_
#define ATTEND_KERNELS_MERGE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/attention.h"

namespace attend {

// A partial state: out [rows, v_head_dim] fp32, normalised, contiguous; lse [rows], natural log.
// (0, -inf) is neutral.
struct PartialState {
  const float* out = nullptr;
  const float* lse = nullptr;
};

// Merges the parts in order into out ([rows, v_head_dim] of dtype) and lse ([rows], may be null).
// sinks: one logit per row, or null; it enters once, here. A row whose parts are all empty gives 0 and
// -inf (or its sink). Host memory. InvalidArgument for no parts.
absl::Status MergePartials(std::span<const PartialState> parts, int64_t rows, int32_t v_head_dim,
                           DataType dtype, const float* sinks, void* out, float* lse);

}  // namespace attend

#endif  // ATTEND_KERNELS_MERGE_H_
