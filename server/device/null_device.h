// A device that computes nothing and answers zeros: what is left is transport.
#ifndef ATTEND_SERVER_DEVICE_NULL_DEVICE_H_
#define ATTEND_SERVER_DEVICE_NULL_DEVICE_H_

#include <memory>

#include "server/device/device.h"

namespace attend::server {

// Accepts what the kernels accept, writes zeros over every output (blocks may hold another request's
// bytes), and finishes inside Run. The work it reports is zero.
std::unique_ptr<Device> CreateNullDevice(int slots = 64);

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_NULL_DEVICE_H_
