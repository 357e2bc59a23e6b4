// Runs the kernel cases on the first GPU. Device memory that no input fills is poisoned: outputs carry the
// host's poison, the workspace bytes of 0xff.
//
// Environment: ATTEND_TEST_FRESH_MEMORY gives every launch an unwritten workspace in place of poison, for
// compute-sanitizer's initcheck. ATTEND_TEST_VARIANT runs fp16 and bf16 FLASH with this variant alone (a
// portable kernel on a chip that has its own); ATTEND_TEST_SMALL leaves tensors of many gigabytes out, for
// compute-sanitizer. So does sharding (GTEST_TOTAL_SHARDS): shards share one GPU.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/status.h"
#include "tests/kernels/runner.h"

namespace attend::test {
namespace {

constexpr int64_t kLargeDeviceBytes = int64_t{64} << 30;

// Device memory of at least the bytes asked for, kept between launches.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  // fresh: memory that nothing has written yet.
  absl::Status Reserve(int64_t bytes, bool fresh = false) {
    if (bytes <= bytes_ && !fresh) return absl::OkStatus();
    ATTEND_CUDA_RETURN_IF_ERROR(cudaFree(data_));
    data_ = nullptr;
    bytes_ = 0;
    ATTEND_CUDA_RETURN_IF_ERROR(cudaMalloc(&data_, bytes));
    bytes_ = bytes;
    return absl::OkStatus();
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

bool Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0';
}

class CudaRunner : public Runner {
 public:
  CudaRunner() {
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
      unavailable_ = std::string("no GPU: ") + cudaGetErrorString(error);
      return;
    }
    if (const absl::Status status = cuda::QueryDevice(0, &device_); !status.ok()) {
      unavailable_ = std::string("no GPU: ") + std::string(status.message());
      return;
    }
    size_t free_bytes = 0, total_bytes = 0;
    const bool small = Environment("ATTEND_TEST_SMALL") || Environment("GTEST_TOTAL_SHARDS");
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && !small) {
      sparse_bytes_max_ = static_cast<int64_t>(free_bytes) / 2;
    }
    if (Environment("ATTEND_TEST_VARIANT")) variant_ = std::getenv("ATTEND_TEST_VARIANT");
  }

  std::string Unavailable() const override { return unavailable_; }
  bool large() const override { return sparse_bytes_max_ >= kLargeDeviceBytes; }
  int64_t sparse_bytes_max() const override { return sparse_bytes_max_; }

  absl::Status Run(const Launch& launch, std::span<const Region> regions) override {
    if (regions.size() > buffers_.size()) buffers_ = std::vector<DeviceBuffer>(regions.size());
    for (size_t i = 0; i < regions.size(); ++i) {
      if (auto s = buffers_[i].Reserve(regions[i].bytes); !s.ok()) return s;
      if (!regions[i].touched.empty()) {
        ATTEND_CUDA_RETURN_IF_ERROR(
            cudaMemset(buffers_[i].data(), regions[i].output ? 0xff : 0, regions[i].bytes));
      }
      if (auto s = Copy(regions[i], buffers_[i].data(), cudaMemcpyHostToDevice); !s.ok()) return s;
    }
    std::vector<Problem> problems;
    for (const Problem& p : launch.problems) {
      problems.push_back(Remap(p, [&](const void* host) { return OnDevice(host, regions); }));
    }
    Launch on_device = launch;
    on_device.problems = problems;
    if (auto s = Enqueue(on_device); !s.ok()) return s;
    ATTEND_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    for (size_t i = 0; i < regions.size(); ++i) {
      if (!regions[i].output) continue;
      if (auto s = Copy(regions[i], buffers_[i].data(), cudaMemcpyDeviceToHost); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  // What matters of a region, to the device or back.
  static absl::Status Copy(const Region& region, void* device, cudaMemcpyKind kind) {
    const std::vector<Region::Span> whole = {{0, region.bytes}};
    for (const auto& [offset, bytes] : region.touched.empty() ? whole : region.touched) {
      void* on_host = static_cast<char*>(region.data) + offset;
      void* on_device = static_cast<char*>(device) + offset;
      const bool back = kind == cudaMemcpyDeviceToHost;
      ATTEND_CUDA_RETURN_IF_ERROR(
          cudaMemcpy(back ? on_host : on_device, back ? on_device : on_host, bytes, kind));
    }
    return absl::OkStatus();
  }

  void* OnDevice(const void* host, std::span<const Region> regions) const {
    // A region may begin where another ends.
    for (const int64_t behind : {0, 1}) {
      for (size_t i = 0; i < regions.size(); ++i) {
        const int64_t offset = static_cast<const char*>(host) - static_cast<const char*>(regions[i].data);
        if (offset >= 0 && offset < regions[i].bytes + behind) {
          return static_cast<char*>(buffers_[i].data()) + offset;
        }
      }
    }
    std::abort();  // a case that points outside of its regions
  }

  absl::Status Enqueue(const Launch& launch) {
    const bool forced = launch.kernel == Kernel::kFlash && launch.dtype != DataType::kFp32;
    const std::string variant = forced ? variant_ : "";
    const auto need = cuda::WorkspaceNeedForced(launch, device_, variant);
    if (!need.ok()) return need.status();
    if (auto s = workspace_.Reserve(need->device_bytes, fresh_memory_); !s.ok()) return s;
    std::vector<char> host(need->host_bytes);
    if (need->device_bytes > 0 && !fresh_memory_) {
      ATTEND_CUDA_RETURN_IF_ERROR(cudaMemset(workspace_.data(), 0xff, need->device_bytes));
    }
    const cuda::Workspace workspace = {.device = workspace_.data(),
                                       .device_bytes = need->device_bytes,
                                       .host = host.data(),
                                       .host_bytes = need->host_bytes};
    if (auto s = cuda::EnqueueForced(launch, device_, variant, workspace, nullptr); !s.ok()) return s;
    ATTEND_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(nullptr));
    return absl::OkStatus();
  }

  cuda::DeviceProperties device_;
  std::string unavailable_;
  std::string variant_;
  const bool fresh_memory_ = Environment("ATTEND_TEST_FRESH_MEMORY");
  int64_t sparse_bytes_max_ = int64_t{1} << 28;
  std::vector<DeviceBuffer> buffers_;
  DeviceBuffer workspace_;
};

}  // namespace

std::unique_ptr<Runner> MakeRunner() { return std::make_unique<CudaRunner>(); }

}  // namespace attend::test
