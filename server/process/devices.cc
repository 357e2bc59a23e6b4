#include "server/process/devices.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "server/device/cpu_device.h"
#include "server/device/cuda/cuda_api.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/cuda_region.h"
#include "server/device/null_device.h"
#include "server/memory/host_region.h"
#include "server/memory/region_pool.h"

namespace attend::server {
namespace {

// The error of what the option decides; as it is where it begins with an option.
absl::Status Named(absl::string_view option, const absl::Status& status) {
  if (absl::StartsWith(status.message(), "--")) return status;
  return absl::Status(status.code(), absl::StrCat("--", option, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<HostPool>> PlainPool(const ServerOptions& options) {
  auto region = MapHostRegion(options.host_bytes_max);
  if (!region.ok()) return Named("host-bytes-max", region.status());
  return CreateRegionPool(*std::move(region));
}

absl::StatusOr<Devices> MakeCpu(const ServerOptions& options, const std::string& why) {
  CpuDeviceOptions cpu;
  cpu.threads = static_cast<int>(options.cpu_threads);
  cpu.slots = static_cast<int>(options.cpu_slots);
  cpu.workspace_bytes_max = options.cpu_workspace_bytes_max;
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

absl::StatusOr<Devices> MakeNull(const ServerOptions& options) {
  auto pool = PlainPool(options);
  if (!pool.ok()) return pool.status();
  Devices made;
  made.choice = "null: answers zeros, as asked";
  NullDeviceOptions null;
  null.launch_time = options.null_launch_time;
  if (null.launch_time > absl::ZeroDuration()) null.slots = static_cast<int>(options.device_slots);
  made.devices.push_back(CreateNullDevice(null));
  made.pool = *std::move(pool);
  return made;
}

// The GPUs that --devices names, each once (ResolveOptions has looked), of those there are.
absl::StatusOr<std::vector<int>> ChooseGpus(const std::string& devices, int count) {
  std::vector<int> chosen;
  if (devices == "all") {
    for (int ordinal = 0; ordinal < count; ++ordinal) chosen.push_back(ordinal);
    return chosen;
  }
  for (absl::string_view text : absl::StrSplit(devices, ',')) {
    int ordinal = 0;
    if (!absl::SimpleAtoi(text, &ordinal) || ordinal < 0 || ordinal >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices: \"", text, "\" is not a GPU's index; there are ", count));
    }
    chosen.push_back(ordinal);
  }
  return chosen;
}

// The GPUs that are chosen, one or more. FailedPrecondition says why there is none to work with.
absl::StatusOr<std::vector<std::shared_ptr<CudaApi>>> OpenGpus(const ServerOptions& options,
                                                               const Gpus& gpus) {
  auto count = gpus.count();
  if (!count.ok()) return count.status();
  auto chosen = ChooseGpus(options.devices, *count);
  if (!chosen.ok()) return chosen.status();
  std::vector<std::shared_ptr<CudaApi>> apis;
  absl::Status unfit;  // the first that is
  for (int ordinal : *chosen) {
    auto api = gpus.open(ordinal);
    if (api.ok()) {
      apis.push_back(*std::move(api));
    } else if (absl::IsFailedPrecondition(api.status())) {
      unfit.Update(api.status());
    } else {
      return api.status();
    }
  }
  if (unfit.ok()) return apis;
  if (apis.empty()) return unfit;
  return absl::InvalidArgumentError(absl::StrCat(unfit.message(), "; leave it out with --devices"));
}

// FailedPrecondition as of OpenGpus.
absl::StatusOr<Devices> MakeCuda(const ServerOptions& options, const Gpus& gpus) {
  auto apis = OpenGpus(options, gpus);  // all of them before any memory is taken
  if (!apis.ok()) return apis.status();
  // One pool serves every GPU: memory pinned by one is pinned for all.
  auto region = AllocatePinnedRegion(apis->front(), options.host_bytes_max);
  if (!region.ok()) return Named("host-bytes-max", region.status());

  CudaDeviceOptions cuda;
  cuda.slots = static_cast<int>(options.device_slots);
  cuda.short_slots = static_cast<int>(options.device_short_slots);
  cuda.device_bytes = options.device_bytes_max;
  cuda.staging_bytes = options.device_staging_bytes_max;
  cuda.launch_max = absl::Microseconds(options.launch_time_max_us);
  Devices made;
  made.choice = "cuda:";
  made.pool = CreateRegionPool(*std::move(region));
  for (const std::shared_ptr<CudaApi>& api : *apis) {
    auto device = MakeCudaDevice(api, cuda);
    if (!device.ok()) return device.status();
    const DeviceInfo& info = (*device)->info();
    absl::StrAppend(&made.choice, " ", info.name, " (", info.model, ", ", info.uuid, ", ",
                    (*device)->device_bytes_max() >> 20, " MiB for tensors, memory told by ",
                    info.memory_source, ")");
    made.devices.push_back(*std::move(device));
  }
  return made;
}

absl::Status RunOnce(Device* device, DeviceSlot* slot, HostPool* pool, Kernel kernel, DataType dtype) {
  Call call;
  call.kernel = kernel;
  call.dtype = dtype;
  call.batch = call.q_heads = call.kv_heads = 1;
  call.head_dim = call.v_head_dim = 64;
  call.q_len = call.kv_len = 16;
  if (!device->Measure(call).ok()) return absl::OkStatus();  // this device does without it
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

absl::StatusOr<Devices> MakeDevices(const ServerOptions& options) { return MakeDevices(options, RealGpus()); }

absl::StatusOr<Devices> MakeDevices(const ServerOptions& options, const Gpus& gpus) {
  if (options.device == "null") return MakeNull(options);
  if (options.device == "cpu") return MakeCpu(options, "as asked");
  auto cuda = MakeCuda(options, gpus);
  if (cuda.ok()) return cuda;
  // A GPU that is there and does not work is not passed over in silence.
  if (options.device == "auto" && cuda.status().code() == absl::StatusCode::kFailedPrecondition) {
    return MakeCpu(options, std::string(cuda.status().message()));
  }
  return Named(absl::StrCat("device=", options.device), cuda.status());
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
