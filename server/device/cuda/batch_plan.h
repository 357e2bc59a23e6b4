// Where the tensors of a batch lie on a device and what has to be copied: host arithmetic only.
#ifndef ATTEND_SERVER_DEVICE_CUDA_BATCH_PLAN_H_
#define ATTEND_SERVER_DEVICE_CUDA_BATCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/device/device.h"

namespace attend::server {

// Bytes of host memory and where on the device they lie, from the start of the batch's memory there.
struct CopyRange {
  std::byte* host = nullptr;
  int64_t device_offset = 0;
  int64_t bytes = 0;
};

// Bytes that lie on the device ahead of the batch, and the offset that stands for them in the plan: behind
// all of the batch's own memory.
struct StagedRange {
  int64_t offset = 0;
  std::byte* device = nullptr;
};

// Where a call's tensors lie, in bytes from the start of the batch's device memory; -1 where absent.
struct TensorOffsets {
  int64_t q = -1, k = -1, v = -1, bias = -1, mask = -1, alibi_slopes = -1, sinks = -1, weight_rows = -1;
  int64_t out = -1, lse = -1, weights = -1;
};

// The plan of one batch. Tensors that lie close together in host memory (a request's inputs do, and its
// outputs) travel in one copy, alignment gaps included.
struct BatchPlan {
  std::vector<CopyRange> in, out;
  std::vector<StagedRange> staged;     // by offset
  std::vector<TensorOffsets> tensors;  // per item
  int64_t bytes = 0;  // device memory of all tensors but staged ones, a multiple of kDeviceAlignment

  // Where an offset lies once the batch's memory begins at base.
  std::byte* Address(int64_t offset, std::byte* base) const;
};

inline constexpr int64_t kDeviceAlignment = 256;
constexpr int64_t AlignForDevice(int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// The items' staging is a CudaStaging.
BatchPlan PlanBatch(std::span<const BatchItem> batch);

// Bytes that PlanBatch places on the device for this call when its inputs lie in one block and its outputs
// in another; an upper bound for any placement.
int64_t TensorDeviceBytes(const Call& call);

// The tensors at these offsets from base.
CallTensors AtAddress(const TensorOffsets& offsets, std::byte* base);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_BATCH_PLAN_H_
