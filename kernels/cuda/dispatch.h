// Which kernel runs a problem: pure host code, tested without a GPU.
#ifndef ATTEND_KERNELS_CUDA_DISPATCH_H_
#define ATTEND_KERNELS_CUDA_DISPATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/attention.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda {

// The variant for one problem, from the launch's kernel, dtype and head_dims, this problem and the device
// alone. `forced`, unless empty, names the only variant allowed. Unimplemented says what is supported.
absl::StatusOr<const Variant*> Choose(const Launch& launch, const Problem& problem,
                                      const DeviceProperties& device, std::span<const Variant> variants,
                                      absl::string_view forced);

// Problems of one launch that share a variant.
struct SubLaunch {
  const Variant* variant = nullptr;
  std::vector<Problem> problems;
  // The launch of these problems, valid as long as this object.
  Launch Of(const Launch& whole) const;
};

// A launch split by variant, in the table's order. Problems without queries or keys are left out: nothing
// has to be computed for them.
absl::StatusOr<std::vector<SubLaunch>> Partition(const Launch& launch, const DeviceProperties& device,
                                                 std::span<const Variant> variants, absl::string_view forced);

// Enqueue and WorkspaceNeedOf of cuda_attention.h with one variant forced: for tests and benchmarks, which
// run a portable kernel on a chip that has a better one.
absl::Status EnqueueForced(const Launch& launch, const DeviceProperties& device, absl::string_view forced,
                           const Workspace& workspace, Stream stream);
absl::StatusOr<WorkspaceNeed> WorkspaceNeedForced(const Launch& launch, const DeviceProperties& device,
                                                  absl::string_view forced);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_DISPATCH_H_
