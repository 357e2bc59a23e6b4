// A GPU as a Device: batches on their own streams, so that one's copies overlap another's kernels.
//
//   Run -> place (one range of the device arena) -> copies in -> kernels -> copies out -> event
//        -> completion thread: timings, fault or not, range given back -> done
//
// Tensors of large requests may be there before (Stage): on a stream and in memory of their own, for which
// the batch's stream waits. See staging.h.
//
// A batch for which the arena has no range waits for one; nothing here blocks the caller. One thread per
// device asks for the events of what is in flight: an interrupt or a callback of the runtime comes later
// after the GPU is done than a small batch takes. The thread yields while a batch is young and alone, sleeps
// for an eighth of the newest one's age otherwise, and for good where nothing is in flight.
#ifndef ATTEND_SERVER_DEVICE_CUDA_CUDA_DEVICE_H_
#define ATTEND_SERVER_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/device/cuda/cuda_api.h"
#include "server/device/cuda/nvml.h"
#include "server/device/device.h"

namespace attend::server {

struct CudaDeviceOptions {
  int slots = 4;
  int short_slots = 2;
  // Device memory for tensors and workspace, taken at start. 0: nine tenths of what is free.
  int64_t device_bytes = 0;
  // Of it, for tensors of large requests that come ahead of their batch; a sixteenth at most. 0: none.
  int64_t staging_bytes = 0;
  // A request of this many bytes is large. Below, the copy takes no longer than to wait for it costs,
  // requests share launches and their copies, and one thread has them off the wire before another could
  // begin.
  int64_t staged_request_bytes_min = int64_t{8} << 20;
  // Pinned memory for work lists that do not fit kernel parameters, taken at start.
  int64_t scratch_bytes = int64_t{64} << 20;
  // Launches predicted to take longer are cut; see launch_split.h.
  absl::Duration launch_max = absl::Milliseconds(2);
  // Who tells the GPU's total and free memory; where it cannot, CUDA does. Loaded by this name or path.
  std::string nvml_library = kNvmlLibrary;
};

// RESOURCE_EXHAUSTED where the memory cannot be had; INTERNAL for other faults.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(std::shared_ptr<CudaApi> api,
                                                       const CudaDeviceOptions& options);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_CUDA_DEVICE_H_
