// The few operations of a GPU that the server's device needs, behind an interface: the real one calls the
// CUDA runtime; tests put another in its place, which computes on the CPU or fails on purpose.
#ifndef ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_
#define ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/work.h"

namespace attend::server {

// Whether a CUDA error leaves the device useless for this process: everything after it fails too.
// Allocation failures and refused launches do not.
bool IsStickyFault(const absl::Status& status);
// A status that IsStickyFault tells apart.
absl::Status StickyFault(const std::string& message);

// All functions are thread-safe and act on the device that the object was made for. Errors:
// RESOURCE_EXHAUSTED for memory, INTERNAL for everything else, sticky or not.
class CudaApi {
 public:
  using Stream = void*;
  using Event = void*;
  enum class Priority { kNormal, kUrgent };

  struct Properties {
    int ordinal = 0;
    std::string model;
    std::string uuid;  // "GPU-..." or "MIG-..." as nvidia-smi prints it
    int64_t memory_bytes = 0;
    int multiprocessors = 0;
  };

  // One of the two lies in device memory, the other in pinned host memory. They do not overlap.
  struct Transfer {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };

  struct WorkspaceNeed {
    int64_t device_bytes = 0;
    int64_t pinned_bytes = 0;
  };

  virtual ~CudaApi() = default;
  virtual const Properties& properties() const = 0;

  virtual absl::StatusOr<void*> AllocateDevice(int64_t bytes) = 0;
  virtual void FreeDevice(void* memory) = 0;
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;  // usable by every device
  virtual void FreePinned(void* memory) = 0;
  virtual absl::StatusOr<int64_t> FreeMemoryBytes() = 0;

  virtual absl::StatusOr<Stream> CreateStream(Priority priority) = 0;
  virtual void DestroyStream(Stream stream) = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;

  // Copies of a batch, as few operations of the driver as do it. The list may be freed on return.
  virtual absl::Status CopyIn(std::span<const Transfer> transfers, Stream stream) = 0;
  virtual absl::Status CopyOut(std::span<const Transfer> transfers, Stream stream) = 0;
  virtual absl::Status Record(Event event, Stream stream) = 0;
  // What is enqueued on the stream from now on comes after the event, as it was recorded last.
  virtual absl::Status EnqueueWait(Event event, Stream stream) = 0;
  // Whether a recorded event has passed, without waiting; the sticky fault that keeps it from passing.
  virtual absl::StatusOr<bool> Passed(Event event) = 0;
  // Blocks until the stream has passed all that was enqueued; the sticky fault that it met.
  virtual absl::Status AwaitStream(Stream stream) = 0;
  // Nanoseconds between two events that have passed.
  virtual absl::StatusOr<int64_t> ElapsedNs(Event begin, Event end) = 0;

  // Scratch that Enqueue needs for such a launch; InvalidArgument or Unimplemented where it takes none such.
  virtual absl::StatusOr<WorkspaceNeed> WorkspaceNeedOf(const Launch& launch) const = 0;
  virtual TileShape FlashTile(const Launch& launch) const = 0;
  virtual absl::Status Enqueue(const Launch& launch, void* workspace, int64_t workspace_bytes, void* pinned,
                               int64_t pinned_bytes, Stream stream) = 0;
};

// The GPUs that a process sees. Errors are one line that says why; FAILED_PRECONDITION where there is nothing
// to work with, other codes where what is there does not work.
struct Gpus {
  // How many, one or more. FAILED_PRECONDITION: no driver, a driver too old, no device visible, a build
  // without CUDA.
  std::function<absl::StatusOr<int>()> count;
  // One of them, 0 <= ordinal < count. FAILED_PRECONDITION: a chip too old.
  std::function<absl::StatusOr<std::shared_ptr<CudaApi>>(int ordinal)> open;
};
// Those of this machine.
Gpus RealGpus();

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_
