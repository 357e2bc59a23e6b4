#include "server/memory/host_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

class MappedRegion : public HostRegion {
 public:
  MappedRegion(std::byte* data, int64_t size) : data_(data), size_(size) {}
  ~MappedRegion() override { munmap(data_, size_); }
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  std::byte* data() const override { return data_; }
  int64_t size() const override { return size_; }
  bool Release(int64_t offset, int64_t bytes) override {
    return madvise(data_ + offset, bytes, MADV_DONTNEED) == 0;
  }

 private:
  std::byte* const data_;
  const int64_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostRegion>> MapHostRegion(int64_t size) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (size < 1 || size > std::numeric_limits<int64_t>::max() - page) {
    return absl::InvalidArgumentError(absl::StrCat("region of ", size, " bytes"));
  }
  size = (size + page - 1) / page * page;
  // NORESERVE: the budget is an upper bound; a system that does not overcommit may refuse later, when a
  // page is touched, no sooner than it would for any other program.
  void* data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", size, " bytes: ", strerror(errno)));
  }
  // Large pages make the first touch of a tensor several times cheaper; without them it works as well.
  madvise(data, size, MADV_HUGEPAGE);
  return std::make_unique<MappedRegion>(static_cast<std::byte*>(data), size);
}

}  // namespace attend::server
