// Long launches in parts of bounded time, so that a short request waits for one part and not for all of a
// long one: the GPU does not interrupt a running kernel.
#ifndef ATTEND_SERVER_DEVICE_CUDA_LAUNCH_SPLIT_H_
#define ATTEND_SERVER_DEVICE_CUDA_LAUNCH_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/attention.h"

namespace attend::server {

// The heads [kv_begin, kv_begin + kv_count) of a problem, and the query heads that share them, as a
// problem of its own.
Problem HeadSlice(const Problem& problem, const Launch& launch, int32_t kv_begin, int32_t kv_count);

// Moves every tensor that the problem has to where move_to says, aligned as before. A page table is left as
// it is: a call has none.
void MoveTensors(absl::FunctionRef<std::byte*(std::byte*)> move_to, Problem* problem);

// Nanoseconds that a launch of this problem alone may take on a device with so many multiprocessors: a
// rough prediction from FLOPs and bytes, for splitting and for Device::Measure.
int64_t PredictNs(const Launch& launch, const Problem& problem, int multiprocessors);

// The launch's problems in parts that are predicted to take part_ns_max each, in order; problems are
// joined, and cut by KV heads where one alone takes longer (one KV head is never cut). A function of the
// launch and the device alone: the same request is always cut alike. At least one part.
std::vector<std::vector<Problem>> SplitLaunch(const Launch& launch, int multiprocessors, int64_t part_ns_max);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_LAUNCH_SPLIT_H_
