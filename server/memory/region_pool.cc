#include "server/memory/region_pool.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/error.h"

namespace attend::server {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kChunk = int64_t{2} << 20;  // what resident memory is counted in; a large page
constexpr int64_t kLargeFraction = 64;        // blocks of capacity / 64 or more come from high ends
constexpr absl::Duration kRetryDelay = absl::Milliseconds(20);

int64_t RoundUp(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

class RegionPool : public HostPool {
 public:
  RegionPool(std::unique_ptr<HostRegion> region, const RegionPoolOptions& options)
      : region_(std::move(region)),
        capacity_(region_->size() / kAlignment * kAlignment),
        resident_chunks_max_(options.resident_bytes_max / kChunk),
        resident_((capacity_ + kChunk - 1) / kChunk, false) {
    AddFree(0, capacity_);
  }

  absl::StatusOr<HostBlock> Allocate(int64_t size) override {
    if (size == 0) return HostBlock();
    if (size < 0 || size > capacity_) {
      return ErrorWithReason(absl::StatusCode::kInvalidArgument, "REQUEST_TOO_LARGE",
                             absl::StrCat("a block of ", size, " bytes; the pool holds ", capacity_));
    }
    const int64_t bytes = RoundUp(size);
    absl::MutexLock lock(&mutex_);
    const auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) {
      return Exhausted(
          "POOL_FULL",
          absl::StrCat("no ", size, " contiguous bytes free; ", used_, " of ", capacity_, " in use"),
          kRetryDelay);
    }
    const auto [range_bytes, range_begin] = *fit;
    const int64_t rest = range_bytes - bytes;
    const bool from_high_end = bytes >= capacity_ / kLargeFraction;
    const int64_t offset = from_high_end ? range_begin + rest : range_begin;
    if (rest == 0) {
      RemoveFree(range_begin, range_bytes);
    } else {
      MoveFree(range_begin, range_bytes, from_high_end ? range_begin : range_begin + bytes, rest);
    }
    MarkResident(offset, bytes);
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return HostBlock(this, region_->data() + offset, size);
  }

  int64_t capacity() const override { return capacity_; }
  int64_t used_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return used_;
  }
  int64_t peak_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return peak_;
  }

 protected:
  void Free(std::byte* data, int64_t size) override {
    int64_t begin = data - region_->data();
    const int64_t freed = RoundUp(size);
    int64_t end = begin + freed;
    absl::MutexLock lock(&mutex_);
    const auto next = by_offset_.lower_bound(begin);
    // A block that overlaps free memory was given back twice: the pool is corrupt, and tensors with it.
    if (next != by_offset_.end() && next->first < end) abort();
    const auto last = next == by_offset_.begin() ? by_offset_.end() : std::prev(next);
    if (last != by_offset_.end() && last->first + last->second > begin) abort();
    const bool joins_last = last != by_offset_.end() && last->first + last->second == begin;
    const bool joins_next = next != by_offset_.end() && next->first == end;
    if (joins_last) begin = last->first;
    if (joins_next) end += next->second;
    if (joins_last) {
      if (joins_next) RemoveFree(next->first, next->second);
      MoveFree(begin, last->second, begin, end - begin);
    } else if (joins_next) {
      MoveFree(next->first, next->second, begin, end - begin);
    } else {
      AddFree(begin, end - begin);
    }
    used_ -= freed;
    if (resident_chunks_ > resident_chunks_max_) GiveBack(begin, end);
  }

 private:
  void AddFree(int64_t offset, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void RemoveFree(int64_t offset, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  // The same range, with other ends, in the nodes that it has: most blocks come and go at the end of one.
  void MoveFree(int64_t offset, int64_t bytes, int64_t to_offset, int64_t to_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto placed = by_offset_.extract(offset);
    placed.key() = to_offset;
    placed.mapped() = to_bytes;
    by_offset_.insert(std::move(placed));
    auto sized = by_size_.extract({bytes, offset});
    sized.value() = {to_bytes, to_offset};
    by_size_.insert(std::move(sized));
  }

  void MarkResident(int64_t offset, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int64_t c = offset / kChunk; c <= (offset + bytes - 1) / kChunk; ++c) {
      resident_chunks_ += resident_[c] ? 0 : 1;
      resident_[c] = true;
    }
  }

  // Gives back resident chunks that lie wholly in the free range, from its high end, until enough are
  // gone. The system call is made under the lock: nobody may take the range meanwhile.
  void GiveBack(int64_t begin, int64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t first = (begin + kChunk - 1) / kChunk;
    // The region's last chunk may be a short one.
    const int64_t last = end == capacity_ ? static_cast<int64_t>(resident_.size()) : end / kChunk;
    for (int64_t c = last - 1; c >= first && resident_chunks_ > resident_chunks_max_; --c) {
      if (!resident_[c]) continue;
      const int64_t bytes = std::min(kChunk, region_->size() - c * kChunk);
      if (!region_->Release(c * kChunk, bytes)) return;
      resident_[c] = false;
      --resident_chunks_;
    }
  }

  const std::unique_ptr<HostRegion> region_;
  const int64_t capacity_;
  const int64_t resident_chunks_max_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, int64_t> by_offset_ ABSL_GUARDED_BY(mutex_);           // offset, bytes; disjoint, apart
  std::set<std::pair<int64_t, int64_t>> by_size_ ABSL_GUARDED_BY(mutex_);  // bytes, offset; the same ranges
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<bool> resident_ ABSL_GUARDED_BY(mutex_);  // by chunk: may have been touched
  int64_t resident_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<HostPool> CreateRegionPool(std::unique_ptr<HostRegion> region,
                                           const RegionPoolOptions& options) {
  return std::make_unique<RegionPool>(std::move(region), options);
}

}  // namespace attend::server
