// The real CudaApi, over the CUDA runtime (linked statically: the program starts without a driver).
#include "server/device/cuda/cuda_api.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_attention.h"
#include "server/device/cuda/transfers.h"

namespace attend::server {
namespace {

constexpr int kOldestCapability = 80;

// Errors that concern one call and leave the context usable. Everything not listed is taken for sticky:
// to restart once too often is better than to answer from a broken device.
bool LeavesDeviceUsable(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotReady:
    case cudaErrorNotSupported:
      return true;
    default:
      return false;
  }
}

absl::Status ToStatus(cudaError_t error, const char* expression) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(expression, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (!LeavesDeviceUsable(error)) return StickyFault(message);
  cudaGetLastError();  // or the next call would report it again
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

#define ATTEND_RETURN_IF_CUDA_ERROR(expression) \
  if (absl::Status status = ToStatus((expression), #expression); !status.ok()) return status

cudaStream_t AsStream(CudaApi::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t AsEvent(CudaApi::Event event) { return static_cast<cudaEvent_t>(event); }

// The driver's UUID: on a MIG device the slice's, which the second version of its function tells. CUDA marks
// a slice in the name alone ("NVIDIA H200 MIG 1g.18gb").
std::string ReadUuid(int ordinal, const cudaDeviceProp& prop) {
  CUuuid uuid = prop.uuid;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &entry, 11040, cudaEnableDefault, &result) ==
          cudaSuccess &&
      result == cudaDriverEntryPointSuccess) {
    CUuuid own;
    if (reinterpret_cast<PFN_cuDeviceGetUuid_v11040>(entry)(&own, ordinal) == CUDA_SUCCESS) uuid = own;
  }
  const char* const kind = absl::StrContains(prop.name, " MIG ") ? "MIG" : "GPU";
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  char text[48];
  std::snprintf(text, sizeof(text), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                kind, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                b[14], b[15]);
  return text;
}

class RuntimeApi final : public CudaApi {
 public:
  RuntimeApi(Properties properties, cuda::DeviceProperties kernel_properties)
      : properties_(std::move(properties)), kernel_properties_(kernel_properties) {}

  const Properties& properties() const override { return properties_; }

  absl::StatusOr<void*> AllocateDevice(int64_t bytes) override {
    void* memory = nullptr;
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    ATTEND_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, bytes));
    return memory;
  }
  void FreeDevice(void* memory) override {
    if (Select() == cudaSuccess) cudaFree(memory);
  }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    ATTEND_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    return memory;
  }
  void FreePinned(void* memory) override { cudaFreeHost(memory); }
  absl::StatusOr<int64_t> FreeMemoryBytes() override {
    size_t free = 0, total = 0;
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    ATTEND_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

  absl::StatusOr<Stream> CreateStream(Priority priority) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    int least = 0, greatest = 0;
    ATTEND_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    ATTEND_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(
        &stream, cudaStreamNonBlocking, priority == Priority::kUrgent ? greatest : least));
    return stream;
  }
  void DestroyStream(Stream stream) override { cudaStreamDestroy(AsStream(stream)); }
  absl::StatusOr<Event> CreateEvent() override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    cudaEvent_t event = nullptr;
    ATTEND_RETURN_IF_CUDA_ERROR(cudaEventCreate(&event));
    return event;
  }
  void DestroyEvent(Event event) override { cudaEventDestroy(AsEvent(event)); }

  absl::Status CopyIn(std::span<const Transfer> transfers, Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return ToStatus(EnqueueTransfers(transfers, AsStream(stream)), "copy in");
  }
  absl::Status CopyOut(std::span<const Transfer> transfers, Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return ToStatus(EnqueueTransfers(transfers, AsStream(stream)), "copy out");
  }
  absl::Status Record(Event event, Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return ToStatus(cudaEventRecord(AsEvent(event), AsStream(stream)), "cudaEventRecord");
  }
  absl::Status EnqueueWait(Event event, Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return ToStatus(cudaStreamWaitEvent(AsStream(stream), AsEvent(event)), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> Passed(Event event) override {
    const cudaError_t error = cudaEventQuery(AsEvent(event));
    if (error == cudaErrorNotReady) return false;
    ATTEND_RETURN_IF_CUDA_ERROR(error);
    return true;
  }
  absl::Status AwaitStream(Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return ToStatus(cudaStreamSynchronize(AsStream(stream)), "cudaStreamSynchronize");
  }
  absl::StatusOr<int64_t> ElapsedNs(Event begin, Event end) override {
    float ms = 0;
    ATTEND_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&ms, AsEvent(begin), AsEvent(end)));
    return static_cast<int64_t>(ms * 1e6f);
  }

  absl::StatusOr<WorkspaceNeed> WorkspaceNeedOf(const Launch& launch) const override {
    const auto need = cuda::WorkspaceNeedOf(launch, kernel_properties_);
    if (!need.ok()) return need.status();
    return WorkspaceNeed{need->device_bytes, need->host_bytes};
  }
  TileShape FlashTile(const Launch& launch) const override {
    return cuda::FlashTile(launch, kernel_properties_);
  }
  absl::Status Enqueue(const Launch& launch, void* workspace, int64_t workspace_bytes, void* pinned,
                       int64_t pinned_bytes, Stream stream) override {
    ATTEND_RETURN_IF_CUDA_ERROR(Select());
    return cuda::Enqueue(launch, kernel_properties_, {workspace, workspace_bytes, pinned, pinned_bytes},
                         stream);
  }

 private:
  cudaError_t Select() { return cudaSetDevice(properties_.ordinal); }

  const Properties properties_;
  const cuda::DeviceProperties kernel_properties_;
};

absl::StatusOr<CudaApi::Properties> ReadProperties(int ordinal) {
  cudaDeviceProp prop;
  ATTEND_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&prop, ordinal));
  if (prop.major * 10 + prop.minor < kOldestCapability) {
    return absl::FailedPreconditionError(absl::StrCat("GPU ", ordinal, " (", prop.name,
                                                      ") has compute capability ", prop.major, ".",
                                                      prop.minor, "; 8.0 or newer is needed"));
  }
  CudaApi::Properties p;
  p.ordinal = ordinal;
  p.model = prop.name;
  p.uuid = ReadUuid(ordinal, prop);
  p.memory_bytes = static_cast<int64_t>(prop.totalGlobalMem);
  p.multiprocessors = prop.multiProcessorCount;
  return p;
}

absl::StatusOr<int> CountGpus() {
  int driver = 0, count = 0;
  ATTEND_RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver));
  if (driver == 0) return absl::FailedPreconditionError("no NVIDIA driver was found");
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
        "; this build needs CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10, " or newer"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::FailedPreconditionError("no GPU is visible");
  }
  if (absl::Status status = ToStatus(error, "cudaGetDeviceCount"); !status.ok()) return status;
  return count;
}

absl::StatusOr<std::shared_ptr<CudaApi>> OpenGpu(int ordinal) {
  auto properties = ReadProperties(ordinal);
  if (!properties.ok()) return properties.status();
  cuda::DeviceProperties kernel_properties;
  if (absl::Status status = cuda::QueryDevice(ordinal, &kernel_properties); !status.ok()) return status;
  return std::make_shared<RuntimeApi>(*std::move(properties), kernel_properties);
}

}  // namespace

Gpus RealGpus() { return {CountGpus, OpenGpu}; }

}  // namespace attend::server
