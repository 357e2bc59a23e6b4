#include "server/device/cuda/cuda_region.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

constexpr int64_t kPage = 4096;

class CudaRegion final : public HostRegion {
 public:
  using Free = void (CudaApi::*)(void*);
  CudaRegion(std::shared_ptr<CudaApi> api, void* data, int64_t size, Free free)
      : api_(std::move(api)), data_(static_cast<std::byte*>(data)), size_(size), free_(free) {}
  ~CudaRegion() override { ((*api_).*free_)(data_); }
  std::byte* data() const override { return data_; }
  int64_t size() const override { return size_; }
  bool Release(int64_t, int64_t) override { return false; }

 private:
  const std::shared_ptr<CudaApi> api_;
  std::byte* const data_;
  const int64_t size_;
  const Free free_;
};

using Allocate = absl::StatusOr<void*> (CudaApi::*)(int64_t);

absl::StatusOr<std::unique_ptr<HostRegion>> Make(std::shared_ptr<CudaApi> api, int64_t size, const char* what,
                                                 Allocate allocate, CudaRegion::Free free) {
  if (size < 1) return absl::InvalidArgumentError("a region has at least one byte");
  size = (size + kPage - 1) / kPage * kPage;
  absl::StatusOr<void*> data = ((*api).*allocate)(size);
  if (absl::IsResourceExhausted(data.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(size, " bytes of ", what, ": ", data.status().message()));
  }
  if (!data.ok()) return data.status();
  return std::make_unique<CudaRegion>(std::move(api), *data, size, free);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostRegion>> AllocatePinnedRegion(std::shared_ptr<CudaApi> api, int64_t size) {
  return Make(std::move(api), size, "pinned memory", &CudaApi::AllocatePinned, &CudaApi::FreePinned);
}

absl::StatusOr<std::unique_ptr<HostRegion>> AllocateDeviceRegion(std::shared_ptr<CudaApi> api, int64_t size) {
  return Make(std::move(api), size, "device memory", &CudaApi::AllocateDevice, &CudaApi::FreeDevice);
}

}  // namespace attend::server
