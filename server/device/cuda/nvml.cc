#include "server/device/cuda/nvml.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

// As nvml.h declares them: the server is built where there is none.
using Return = int;  // 0: success
using Handle = struct nvmlDevice_st*;
struct MemoryInfo {  // nvmlMemory_t
  unsigned long long total, free, used;
};

// NVML's total holds what the driver reserves, CUDA's does not: half a percent of an H200.
constexpr int64_t kTotalTolerance = 8;  // one part in so many

absl::Status Failed(const std::string& what) { return absl::UnavailableError(what); }

class LoadedDevice final : public NvmlDevice {
 public:
  ~LoadedDevice() override {
    if (initialised_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }

  absl::Status Open(const std::string& library, const std::string& uuid, int64_t cuda_bytes) {
    library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return Failed(dlerror());
    Return (*init)() = nullptr;
    Return (*handle_by_uuid)(const char*, Handle*) = nullptr;
    if (!Find("nvmlInit_v2", &init) || !Find("nvmlShutdown", &shutdown_) ||
        !Find("nvmlDeviceGetHandleByUUID", &handle_by_uuid) ||
        !Find("nvmlDeviceGetMemoryInfo", &memory_info_)) {
      return Failed(absl::StrCat(library, " lacks a function"));
    }
    if (const Return code = init(); code != 0) return Failed(absl::StrCat("nvmlInit_v2: error ", code));
    initialised_ = true;
    if (const Return code = handle_by_uuid(uuid.c_str(), &device_); code != 0) {
      return Failed(absl::StrCat("nvmlDeviceGetHandleByUUID of ", uuid, ": error ", code));
    }
    const absl::StatusOr<Memory> memory = ReadMemory();
    if (!memory.ok()) return memory.status();
    if (std::abs(memory->total - cuda_bytes) > cuda_bytes / kTotalTolerance) {
      return Failed(absl::StrCat("NVML tells ", memory->total, " bytes of ", uuid, ", CUDA ", cuda_bytes));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Memory> ReadMemory() override {
    MemoryInfo info = {};
    if (const Return code = memory_info_(device_, &info); code != 0) {
      return Failed(absl::StrCat("nvmlDeviceGetMemoryInfo: error ", code));
    }
    return Memory{static_cast<int64_t>(info.total), static_cast<int64_t>(info.free)};
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    return *function != nullptr;
  }

  void* library_ = nullptr;
  bool initialised_ = false;
  Return (*shutdown_)() = nullptr;
  Return (*memory_info_)(Handle, MemoryInfo*) = nullptr;
  Handle device_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NvmlDevice>> NvmlDevice::Open(const std::string& library,
                                                             const std::string& uuid, int64_t cuda_bytes) {
  auto device = std::make_unique<LoadedDevice>();
  if (absl::Status status = device->Open(library, uuid, cuda_bytes); !status.ok()) return status;
  return std::unique_ptr<NvmlDevice>(std::move(device));
}

}  // namespace attend::server
