#include "server/process/server_info.h"

#include <algorithm>

#include "attend_version.h"
#include "kernels/attention.h"

namespace attend::server {

v1::GetServerInfoResponse MakeServerInfo(const ServerOptions& options,
                                         const std::vector<std::unique_ptr<Device>>& devices) {
  v1::GetServerInfoResponse info;
  info.set_version(ATTEND_VERSION);
  int64_t device_bytes_max = 0;
  for (const auto& device : devices) {
    const DeviceInfo& from = device->info();
    v1::Device* to = info.add_devices();
    to->set_name(from.name);
    to->set_kind(from.kind);
    to->set_model(from.model);
    to->set_uuid(from.uuid);
    to->set_memory_bytes(from.memory_bytes);
    to->set_slots(from.slots);
    device_bytes_max = std::max(device_bytes_max, device->device_bytes_max());
  }
  for (const v1::Kernel kernel : {v1::KERNEL_NAIVE, v1::KERNEL_ONLINE, v1::KERNEL_FLASH}) {
    v1::KernelSupport* support = info.add_kernels();
    support->set_kernel(kernel);
    for (const v1::DataType dtype : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
      support->add_dtypes(dtype);
    }
    support->set_head_dim_multiple(kHeadDimMultiple);
    support->set_head_dim_max(kHeadDimMax);
    support->set_all_weights(kernel != v1::KERNEL_FLASH);
  }
  v1::Limits* limits = info.mutable_limits();
  limits->set_request_bytes_max(options.request_bytes_max);
  limits->set_response_bytes_max(options.response_bytes_max);
  limits->set_queue_requests_max(options.queue_requests_max);
  limits->set_host_bytes_max(options.host_bytes_max);
  limits->set_device_bytes_max(device_bytes_max);
  limits->set_batch_requests_max(options.batch_requests_max);
  return info;
}

}  // namespace attend::server
