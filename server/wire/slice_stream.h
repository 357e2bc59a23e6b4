// The bytes of a gRPC message as protobuf reads them: a stream over slices, without a copy.
#ifndef ATTEND_SERVER_WIRE_SLICE_STREAM_H_
#define ATTEND_SERVER_WIRE_SLICE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "google/protobuf/io/zero_copy_stream.h"
#include "grpcpp/support/slice.h"

namespace attend::server {

// Empties the slices, as a thread that is not gRPC's has to: the last reference to a slice returns its memory
// to the resource quota, and where that is overdrawn, gRPC 1.51 schedules work on a thread that it must have
// prepared, or crashes.
void DropSlices(std::span<grpc::Slice> slices);

// Not thread-safe. Read once to look, then Rewind(release) and read again to take: with release, slices are
// dropped soon after the stream has passed their end.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit SliceStream(std::vector<grpc::Slice> slices);
  ~SliceStream() override { DropSlices(std::span(slices_).subspan(dropped_)); }
  SliceStream(const SliceStream&) = delete;
  SliceStream& operator=(const SliceStream&) = delete;

  int64_t size() const { return size_; }  // bytes in all
  // Back to the first byte. After Rewind(true) the stream can be read once more only.
  void Rewind(bool release);
  // Gives the slices up, all of them; the stream is at its end. Not after Rewind(true).
  std::vector<grpc::Slice> Take();

  // ZeroCopyInputStream. Next may drop the buffer that it returned before, and never returns an empty one.
  bool Next(const void** data, int* size) override;
  void BackUp(int count) override;
  bool Skip(int count) override;
  int64_t ByteCount() const override { return position_; }

 private:
  // Past the current slice: drops what has been passed when releasing, some of it at a time.
  void Advance();

  std::vector<grpc::Slice> slices_;
  size_t dropped_ = 0;        // slices that are no longer held, from the first
  int64_t passed_bytes_ = 0;  // of those that are held and passed
  int64_t size_ = 0;
  bool release_ = false;
  size_t index_ = 0;      // of the current slice
  size_t offset_ = 0;     // consumed bytes of the current slice
  int64_t position_ = 0;  // consumed bytes in all
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_SLICE_STREAM_H_
