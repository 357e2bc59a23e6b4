// The CPU kernels behind cpu_attention.h, each in the file of its name. The launch is valid, the workspace
// large enough; rows behind q_len and weights of chosen rows are others' business.
#ifndef ATTEND_KERNELS_CPU_KERNELS_H_
#define ATTEND_KERNELS_CPU_KERNELS_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/cpu_attention.h"

namespace attend::cpu {

int64_t FlashWorkspaceBytes(const Launch& launch, int thread_count);
void RunFlash(const Launch& launch, void* workspace, Parallel& parallel);

int64_t OnlineWorkspaceBytes(const Launch& launch, int thread_count);
void RunOnline(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel);

int64_t NaiveWorkspaceBytes(const Launch& launch, int thread_count);
void RunNaive(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel);

// Weights of chosen rows, the same for each kernel: from q and k once for the maximum and the denominator,
// once more for the weights.
int64_t WeightRowsWorkspaceBytes(const Launch& launch, int thread_count);
void RunWeightRows(const Launch& launch, void* workspace, Parallel& parallel);

// Lanes of a tile: three vectors of the instruction set in use.
int LanesPerTile();

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_KERNELS_H_
