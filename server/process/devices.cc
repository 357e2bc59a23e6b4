#include "server/process/devices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/device/cpu_device.h"
#include "server/device/null_device.h"
#include "server/memory/host_region.h"
#include "server/memory/region_pool.h"

namespace attend::server {
namespace {

absl::StatusOr<std::unique_ptr<HostPool>> PlainPool(const ServerOptions& options) {
  auto region = MapHostRegion(options.host_bytes_max);
  if (!region.ok()) return region.status();
  return CreateRegionPool(*std::move(region));
}

#ifdef ATTEND_HAVE_CPU
absl::StatusOr<Devices> MakeCpu(const ServerOptions& options, const std::string& why) {
  CpuDeviceOptions cpu;
  cpu.threads = static_cast<int>(options.cpu_threads);
  auto device = CreateCpuDevice(cpu);
  if (!device.ok()) return device.status();
  auto pool = PlainPool(options);
  if (!pool.ok()) return pool.status();
  Devices made;
  made.choice = absl::StrCat("cpu: ", why);
  made.devices.push_back(*std::move(device));
  made.pool = *std::move(pool);
  return made;
}

#else
absl::StatusOr<Devices> MakeCpu(const ServerOptions&, const std::string&) {
  return absl::FailedPreconditionError("this build has no CPU kernels");
}
#endif

absl::StatusOr<Devices> MakeNull(const ServerOptions& options) {
  auto pool = PlainPool(options);
  if (!pool.ok()) return pool.status();
  Devices made;
  made.choice = "null: answers zeros, as asked";
  made.devices.push_back(CreateNullDevice());
  made.pool = *std::move(pool);
  return made;
}

// GPUs. FailedPrecondition says why there are none.
absl::StatusOr<Devices> MakeCuda(const ServerOptions&) {
  return absl::FailedPreconditionError("this build has no CUDA");
}

absl::Status RunOnce(Device* device, DeviceSlot* slot, HostPool* pool, Kernel kernel, DataType dtype) {
  Call call;
  call.kernel = kernel;
  call.dtype = dtype;
  call.batch = call.q_heads = call.kv_heads = 1;
  call.head_dim = call.v_head_dim = 64;
  call.q_len = call.kv_len = 16;
  if (!device->Check(call).ok()) return absl::OkStatus();  // this device does without it
  const int64_t bytes = call.q_bytes();
  auto block = pool->Allocate(4 * bytes);
  if (!block.ok()) return block.status();
  std::memset(block->data(), 0, static_cast<size_t>(4 * bytes));
  CallTensors tensors;
  tensors.q = block->data();
  tensors.k = block->data() + bytes;
  tensors.v = block->data() + 2 * bytes;
  tensors.out = block->data() + 3 * bytes;
  const BatchItem item = {&call, &tensors};
  absl::Notification done;
  absl::Status status;
  slot->Run(std::span(&item, 1), [&](BatchResult result) {
    status = result.items.empty() ? absl::InternalError("no result") : result.items[0].status;
    done.Notify();
  });
  done.WaitForNotification();
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(device->info().name, " cannot run ", std::string(Name(kernel)), " in ",
                                   std::string(Name(dtype)), ": ", std::string(status.message())));
}

}  // namespace

absl::StatusOr<Devices> MakeDevices(const ServerOptions& options) {
  if (options.device == "null") return MakeNull(options);
  if (options.device == "cpu") return MakeCpu(options, "as asked");
  auto cuda = MakeCuda(options);
  if (cuda.ok()) return cuda;
  if (options.device == "auto") return MakeCpu(options, std::string(cuda.status().message()));
  return absl::Status(cuda.status().code(),
                      absl::StrCat("--device=cuda: ", std::string(cuda.status().message())));
}

absl::Status WarmUp(const std::vector<std::unique_ptr<Device>>& devices, HostPool* pool) {
  for (const auto& device : devices) {
    const std::unique_ptr<DeviceSlot> slot = device->OpenSlot();
    for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash}) {
      for (const DataType dtype : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
        const absl::Status status = RunOnce(device.get(), slot.get(), pool, kernel, dtype);
        if (!status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace attend::server
