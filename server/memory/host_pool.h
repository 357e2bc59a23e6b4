// Blocks of memory for tensors, out of a budget that is fixed at start. Mostly host memory, pinned where a
// GPU copies from it; the CUDA device also keeps its own memory in such a pool, which never touches it.
#ifndef ATTEND_SERVER_MEMORY_HOST_POOL_H_
#define ATTEND_SERVER_MEMORY_HOST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace attend::server {

class HostPool;

// A block of a pool, which gives itself back when destroyed, or with no pool a part of another block, which
// outlives it. Move-only. A block belongs to one thread at a time, but may be destroyed on any.
class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(HostPool* pool, std::byte* data, int64_t size) : pool_(pool), data_(data), size_(size) {}
  HostBlock(HostBlock&& other) noexcept { *this = std::move(other); }
  HostBlock& operator=(HostBlock&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~HostBlock();

  std::byte* data() const { return data_; }  // 256-byte aligned; null when empty
  int64_t size() const { return size_; }     // as asked for
  explicit operator bool() const { return data_ != nullptr; }

 private:
  HostPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Thread-safe. Outlives its blocks.
class HostPool {
 public:
  virtual ~HostPool() = default;
  // A block of uninitialised memory (it may hold bytes of former requests: whoever takes it writes all
  // that is ever sent from it); an empty one for size 0. RESOURCE_EXHAUSTED (POOL_FULL) when the budget or a
  // contiguous range is used up; InvalidArgument when size is negative or exceeds capacity().
  virtual absl::StatusOr<HostBlock> Allocate(int64_t size) = 0;
  virtual int64_t capacity() const = 0;    // bytes
  virtual int64_t used_bytes() const = 0;  // bytes in blocks now
  virtual int64_t peak_bytes() const = 0;  // most bytes in blocks so far

 protected:
  friend class HostBlock;
  virtual void Free(std::byte* data, int64_t size) = 0;
};

inline HostBlock::~HostBlock() {
  if (pool_ != nullptr) pool_->Free(data_, size_);
}

}  // namespace attend::server

#endif  // ATTEND_SERVER_MEMORY_HOST_POOL_H_
