// Attention on NVIDIA GPUs. Declares no CUDA type, so that hosts without the toolkit can include it.
#ifndef ATTEND_KERNELS_CUDA_CUDA_ATTENTION_H_
#define ATTEND_KERNELS_CUDA_CUDA_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/work.h"

namespace attend::cuda {

// What dispatch needs to know of a GPU; filled by QueryDevice, or by hand in tests without one.
struct DeviceProperties {
  int compute_capability = 0;  // 80, 86, 89, 90, 100, 120
  int multiprocessors = 0;
  int shared_memory_per_block_max = 0;  // bytes, opt-in
};
absl::Status QueryDevice(int ordinal, DeviceProperties* properties);

// Scratch, in bytes.
struct WorkspaceNeed {
  int64_t device_bytes = 0;  // 256-byte aligned
  int64_t host_bytes = 0;    // pinned: work lists too large for kernel parameters
};
// What Enqueue needs for such a launch on this device; InvalidArgument as CheckLaunch, Unimplemented with
// what is supported. A pure function.
absl::StatusOr<WorkspaceNeed> WorkspaceNeedOf(const Launch& launch, const DeviceProperties& device);

// A cudaStream_t, opaque here.
using Stream = void*;

// The tile that FLASH walks.
TileShape FlashTile(const Launch& launch, const DeviceProperties& device);

struct Workspace {
  void* device = nullptr;
  int64_t device_bytes = 0;
  void* host = nullptr;  // pinned
  int64_t host_bytes = 0;
};

// Enqueues the launch on the stream of the current device and returns without waiting. Problems and
// spans may be freed on return; the memory they point to, and the workspace, must live until the stream
// has passed the launch. InvalidArgument as CheckLaunch; Unimplemented names what is supported; Internal
// for a CUDA error. Thread-safe for disjoint outputs and workspaces.
absl::Status Enqueue(const Launch& launch, const DeviceProperties& device, const Workspace& workspace,
                     Stream stream);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_CUDA_ATTENTION_H_
