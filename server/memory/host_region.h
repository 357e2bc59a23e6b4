// Where a pool's memory comes from: one range, reserved at start. Plain pages here; pinned ones where a
// GPU copies from them.
#ifndef ATTEND_SERVER_MEMORY_HOST_REGION_H_
#define ATTEND_SERVER_MEMORY_HOST_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace attend::server {

// Unmapped when destroyed. Release may be called on any thread, one at a time.
class HostRegion {
 public:
  virtual ~HostRegion() = default;
  virtual std::byte* data() const = 0;  // 4096-byte aligned
  virtual int64_t size() const = 0;
  // Gives the pages of [offset, offset + bytes) back to the system, their contents lost; both are
  // multiples of 4096. False where this kind of memory cannot (pinned).
  virtual bool Release(int64_t offset, int64_t bytes) = 0;
};

// Private anonymous memory, taken page by page as it is touched. size is rounded up to whole pages.
// RESOURCE_EXHAUSTED where the system refuses; InvalidArgument for size below 1.
absl::StatusOr<std::unique_ptr<HostRegion>> MapHostRegion(int64_t size);

}  // namespace attend::server

#endif  // ATTEND_SERVER_MEMORY_HOST_REGION_H_
