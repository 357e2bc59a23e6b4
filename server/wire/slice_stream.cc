#include "server/wire/slice_stream.h"

#include <algorithm>
#include <limits>

#include "grpcpp/support/byte_buffer.h"

namespace attend::server {
namespace {

// Passed slices are dropped as often as this many bytes of them are held.
constexpr int64_t kPassedBytesMax = 256 << 10;

}  // namespace

void DropSlices(std::span<grpc::Slice> slices) {
  if (slices.empty()) return;
  // The end of a ByteBuffer is a call of gRPC's that prepares the thread.
  const grpc::ByteBuffer last(slices.data(), slices.size());
  for (grpc::Slice& slice : slices) slice = grpc::Slice();
}

SliceStream::SliceStream(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {
  for (const grpc::Slice& slice : slices_) size_ += static_cast<int64_t>(slice.size());
}

void SliceStream::Rewind(bool release) {
  release_ = release;
  passed_bytes_ = 0;
  index_ = 0;
  offset_ = 0;
  position_ = 0;
}

std::vector<grpc::Slice> SliceStream::Take() {
  dropped_ = 0;
  index_ = 0;
  offset_ = 0;
  position_ = size_;
  return std::exchange(slices_, {});
}

void SliceStream::Advance() {
  passed_bytes_ += static_cast<int64_t>(slices_[index_].size());
  ++index_;
  offset_ = 0;
  if (!release_ || (passed_bytes_ < kPassedBytesMax && index_ < slices_.size())) return;
  DropSlices(std::span(slices_).subspan(dropped_, index_ - dropped_));
  dropped_ = index_;
  passed_bytes_ = 0;
}

bool SliceStream::Next(const void** data, int* size) {
  while (index_ < slices_.size() && offset_ == slices_[index_].size()) Advance();
  if (index_ == slices_.size()) return false;
  const size_t left = std::min<size_t>(slices_[index_].size() - offset_, std::numeric_limits<int>::max());
  *data = slices_[index_].begin() + offset_;
  *size = static_cast<int>(left);
  offset_ += left;
  position_ += static_cast<int64_t>(left);
  return true;
}

void SliceStream::BackUp(int count) {
  // Next leaves the slice that it returned current until it is called again.
  offset_ -= static_cast<size_t>(count);
  position_ -= count;
}

bool SliceStream::Skip(int count) {
  int64_t left = count;
  while (left > 0) {
    if (index_ == slices_.size()) return false;
    const int64_t step = std::min<int64_t>(left, static_cast<int64_t>(slices_[index_].size() - offset_));
    offset_ += static_cast<size_t>(step);
    position_ += step;
    left -= step;
    if (offset_ == slices_[index_].size()) Advance();
  }
  return true;
}

}  // namespace attend::server
