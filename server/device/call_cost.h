// What a call asks of a device, by its shapes alone: checked and counted before its tensors exist.
#ifndef ATTEND_SERVER_DEVICE_CALL_COST_H_
#define ATTEND_SERVER_DEVICE_CALL_COST_H_

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/call.h"
#include "kernels/work.h"

namespace attend::server {

// A call's problems with a placeholder wherever a tensor will be: for checks and workspace sizes, which
// look at which pointers are null and at nothing behind them.
std::vector<Problem> PlaceholderProblems(const Call& call);

// 2 * visible pairs * heads * (head_dim + v_head_dim).
double Flops(const Call& call);
// Bytes of scores that NAIVE and ONLINE hold, once; 0 for FLASH.
double ScoreBytes(const Call& call);
// Bytes of all tensors, inputs and outputs.
double TensorBytes(const Call& call);

// Bytes of device memory that NAIVE would carry for this launch beyond what `work`, its count, says.
int64_t SavedBytes(const Launch& launch, const WorkCount& work, TileShape tile);

// The kernel that runs, never kAuto.
Kernel ResolvedKernel(const Call& call);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CALL_COST_H_
