// A GPU's memory as NVML tells it, NVIDIA's management library, which comes with the driver. Unlike CUDA it
// needs no context, and answers where CUDA's has met a sticky fault. Loaded where it is present, never
// linked.
#ifndef ATTEND_SERVER_DEVICE_CUDA_NVML_H_
#define ATTEND_SERVER_DEVICE_CUDA_NVML_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace attend::server {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// One GPU, or one slice of it (MIG). Thread-safe.
class NvmlDevice {
 public:
  // Bytes. total is the physical memory, with what the driver keeps for itself.
  struct Memory {
    int64_t total = 0;
    int64_t free = 0;
  };

  virtual ~NvmlDevice() = default;
  virtual absl::StatusOr<Memory> ReadMemory() = 0;

  // uuid: "GPU-..." or "MIG-...". Unavailable where the library is absent, is too old or does not know the
  // GPU, and where it tells a total far from cuda_bytes, which CUDA tells: of the whole GPU where the process
  // has a slice.
  static absl::StatusOr<std::unique_ptr<NvmlDevice>> Open(const std::string& library, const std::string& uuid,
                                                          int64_t cuda_bytes);
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_NVML_H_
