// The bytes of a gRPC message as protobuf reads them: a stream over slices, without a copy.
#ifndef ATTEND_SERVER_WIRE_SLICE_STREAM_H_
#define ATTEND_SERVER_WIRE_SLICE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "google/protobuf/io/zero_copy_stream.h"
#include "grpcpp/support/slice.h"

namespace attend::server {

// Not thread-safe. Read once to look, then Rewind(release) and read again to take: with release, a slice
// is dropped as soon as the stream has passed its end.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit SliceStream(std::vector<grpc::Slice> slices);

  int64_t size() const { return size_; }  // bytes in all
  // Back to the first byte. After Rewind(true) the stream can be read once more only.
  void Rewind(bool release);
  // Gives the slices up, all of them; the stream is at its end. Not after Rewind(true).
  std::vector<grpc::Slice> Take();

  // ZeroCopyInputStream. Next drops the buffer that it returned before, and never returns an empty one.
  bool Next(const void** data, int* size) override;
  void BackUp(int count) override;
  bool Skip(int count) override;
  int64_t ByteCount() const override { return position_; }

 private:
  // Past the current slice: drops it when releasing.
  void Advance();

  std::vector<grpc::Slice> slices_;
  int64_t size_ = 0;
  bool release_ = false;
  size_t index_ = 0;      // of the current slice
  size_t offset_ = 0;     // consumed bytes of the current slice
  int64_t position_ = 0;  // consumed bytes in all
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_SLICE_STREAM_H_
