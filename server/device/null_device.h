// A device that computes nothing and answers zeros: what is left is transport.
#ifndef ATTEND_SERVER_DEVICE_NULL_DEVICE_H_
#define ATTEND_SERVER_DEVICE_NULL_DEVICE_H_

#include <memory>

#include "absl/time/time.h"
#include "server/device/device.h"

namespace attend::server {

struct NullDeviceOptions {
  int slots = 64;
  // What each launch takes, however many calls it holds; launches run one after another, as on a GPU that
  // is busy. Zero: batches finish inside Run.
  absl::Duration launch_time = absl::ZeroDuration();
};

// Accepts what the kernels accept and writes zeros over every output (blocks may hold another request's
// bytes). The work it reports is zero.
std::unique_ptr<Device> CreateNullDevice(const NullDeviceOptions& options = {});

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_NULL_DEVICE_H_
