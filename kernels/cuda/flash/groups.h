// Problems of one shape at equal distances in memory, as a dense batch or the sequences of a page table have
// them: the device is told of one and of the distances. Pure host code, tested without a GPU.
#ifndef ATTEND_KERNELS_CUDA_FLASH_GROUPS_H_
#define ATTEND_KERNELS_CUDA_FLASH_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {

struct Group {
  const Problem* first;
  int64_t count = 1;
  Distances distances = {};  // of the pointers that a problem brings
};

// Consecutive problems, grouped. They share bias, mask, slopes and sinks, pointers included; q, k, v and out
// keep the alignment to 16 bytes of the first.
std::vector<Group> GroupProblems(std::span<const Problem* const> problems);

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_GROUPS_H_
