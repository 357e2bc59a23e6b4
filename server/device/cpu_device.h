// The host's processor as a device: kernels/cpu over a pool of threads that all slots share.
#ifndef ATTEND_SERVER_DEVICE_CPU_DEVICE_H_
#define ATTEND_SERVER_DEVICE_CPU_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/device.h"

namespace attend::server {

struct CpuDeviceOptions {
  int threads = 0;  // 0: cpu::UsableCpus()
  // Batches in flight. They share the threads work item by work item, so that a short batch does not
  // wait for a long one.
  int slots = 2;
  int64_t workspace_bytes_max = int64_t{4} << 30;  // scratch of all slots together
};

// RESOURCE_EXHAUSTED where the workspace cannot be mapped; InvalidArgument for options out of range.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CPU_DEVICE_H_
