// Makes the devices that --device and --devices ask for.
#ifndef ATTEND_SERVER_PROCESS_DEVICES_H_
#define ATTEND_SERVER_PROCESS_DEVICES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/memory/host_pool.h"
#include "server/process/options.h"

namespace attend::server {

struct Gpus;

struct Devices {
  std::vector<std::unique_ptr<Device>> devices;  // one or more
  std::unique_ptr<HostPool> pool;                // memory that these devices copy from
  std::string choice;                            // which was taken and why, for the log
};

// options are resolved. Of the GPUs, only those that --devices names are opened. --device=auto leaves it to
// the CPU where there is no GPU, no driver, one too old or a build without CUDA, and where every GPU that is
// named is too old. One too old beside others is an error, and so is one that does not work. The error is one
// line for the operator.
absl::StatusOr<Devices> MakeDevices(const ServerOptions& options);
// The same of other GPUs than this machine's, for tests. gpus is used only until it returns.
absl::StatusOr<Devices> MakeDevices(const ServerOptions& options, const Gpus& gpus);

// Runs one tiny call of each kernel and data type on each device, so that the first caller does not pay
// for loading code, and a device that cannot compute fails at start.
absl::Status WarmUp(const std::vector<std::unique_ptr<Device>>& devices, HostPool* pool);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_DEVICES_H_
