// The few operations of a GPU that the server's device needs, behind an interface: the real one calls the
// CUDA runtime; tests put another in its place, which computes on the CPU or fails on purpose.
#ifndef ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_
#define ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

  virtual absl::Status CopyIn(void* device, const void* host, int64_t bytes, Stream stream) = 0;
  virtual absl::Status CopyOut(void* host, const void* device, int64_t bytes, Stream stream) = 0;
  virtual absl::Status Record(Event event, Stream stream) = 0;
  virtual absl::Status WaitFor(Stream stream, Event event) = 0;
  // Nanoseconds between two events that have passed.
  virtual absl::StatusOr<int64_t> ElapsedNs(Event begin, Event end) = 0;
  // Calls fn(argument) on a thread of the runtime when the stream gets there; fn makes no CUDA call.
  virtual absl::Status Notify(Stream stream, void (*fn)(void*), void* argument) = 0;
  // The fault that the stream met, once it has passed; OK where it met none.
  virtual absl::Status StreamStatus(Stream stream) = 0;

  // The sticky fault that the stream met so far, without waiting; OK where it met none yet.
  virtual absl::Status PeekStream(Stream stream) = 0;

  virtual absl::Status CheckLaunchSupported(const Launch& launch) const = 0;
  virtual int64_t WorkspaceBytes(const Launch& launch) const = 0;
  virtual int64_t PinnedWorkspaceBytes(const Launch& launch) const = 0;
  virtual TileShape FlashTile(const Launch& launch) const = 0;
  virtual absl::Status Enqueue(const Launch& launch, void* workspace, int64_t workspace_bytes, void* pinned,
                               int64_t pinned_bytes, Stream stream) = 0;
};

// GPUs that this process can use, with what it takes to name them. Unavailable, with one line that says
// why, where there are none: no driver, a driver too old, no device visible, a chip too old.
absl::StatusOr<std::vector<CudaApi::Properties>> FindGpus();
// The real one.
absl::StatusOr<std::shared_ptr<CudaApi>> OpenGpu(int ordinal);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_CUDA_API_H_
