// How a launch's problems become kernel launches: pure host code, tested without a GPU.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_PLAN_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/flash/sm90/tiles.h"

namespace attend::cuda::sm90 {

// Problems of one shape at equal distances in memory, so that one tensor map serves them all.
struct ProblemBatch {
  const Problem* first = nullptr;
  int32_t count = 1;
  // Bytes from one problem's tensor to the next one's; of optional tensors 0 where absent.
  int64_t q_bytes = 0, k_bytes = 0, v_bytes = 0, out_bytes = 0, lse_bytes = 0, sinks_bytes = 0,
          alibi_bytes = 0;

  int64_t items(int rows) const { return count * first->q_heads * ((first->q_len + rows - 1) / rows); }
};

// Batches that one kernel launch walks.
struct KernelLaunch {
  TileKind kind = TileKind::kNarrow;
  Tile tile = {};
  int64_t items = 0;
  std::vector<ProblemBatch> batches;
};

// The kernel that a problem runs on is a function of the launch's head_dims and of the problem alone.
std::vector<KernelLaunch> PlanLaunches(const Launch& launch);

// The tiles that a problem walks.
TileKind KindOf(const Launch& launch, const Problem& problem);
Tile TileOf(const Launch& launch, const Problem& problem);

// Whether causal mask or window hide a key from some row.
bool IsMasked(const Problem& problem);

// (batch, head) pairs whose K and V stay in the L2 cache while their items are walked together.
int32_t SectionHeads(const Launch& launch, const Problem& problem, int32_t heads);

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_PLAN_H_
