#include "absl/strings/cord.h"
#include "server/device/cuda/cuda_api.h"

namespace attend::server {
namespace {

constexpr char kStickyUrl[] = "attend/sticky_cuda_error";

}  // namespace

bool IsStickyFault(const absl::Status& status) { return status.GetPayload(kStickyUrl).has_value(); }

absl::Status StickyFault(const std::string& message) {
  absl::Status status = absl::InternalError(message);
  status.SetPayload(kStickyUrl, absl::Cord("1"));
  return status;
}

}  // namespace attend::server
