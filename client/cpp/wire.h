// attend.v1 messages to and from the caller's memory: a request's tensor bytes are aliased by the slices of
// a ByteBuffer, never copied; a response's are copied once, from the slices to where the caller wants them.
#ifndef ATTEND_CLIENT_CPP_WIRE_H_
#define ATTEND_CLIENT_CPP_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attend/types.h"

namespace attend {
inline namespace client {

// Counts the slices that still alias the caller's memory. gRPC may hold some a little longer than the call
// (a write in progress), and the caller must not free its memory before they are gone.
class SliceCount {
 public:
  SliceCount() : count_(std::make_shared<std::atomic<int64_t>>(0)) {}
  int64_t value() const { return count_->load(std::memory_order_acquire); }
  // A slice over memory of the caller's, counted while it lives.
  grpc::Slice Alias(const void* data, size_t bytes) const;

 private:
  std::shared_ptr<std::atomic<int64_t>> count_;
};

// Where results go; see CallOptions.
struct ResultBuffers {
  absl::Span<std::byte> out, lse, weights;
};

// A request checked and ready to be sent any number of times.
class EncodedRequest {
 public:
  // InvalidArgument with violations where a tensor has no memory, a shape no size, or where the request or
  // its response passes bytes_max, or a result buffer is not of its result's size. Keeps the views only.
  static absl::StatusOr<EncodedRequest> Make(const Request& request, const ResultBuffers& buffers,
                                             int64_t bytes_max);
  // The message of one attempt. The slices over the caller's memory count in `slices`.
  grpc::ByteBuffer Encode(const SliceCount& slices) const;
  // Bytes of the message, exactly.
  int64_t bytes() const { return bytes_; }
  // What the response must hold.
  const ResponseShapes& expected() const { return expected_; }

 private:
  struct Part {
    std::string header;  // wire bytes before the data
    const void* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Part> parts_;
  ResponseShapes expected_;
  int64_t bytes_ = 0;
};

// Parses a response, tensor bytes straight into `buffers` where given, and clears `message`. Internal where
// the message is not a response, or not of the expected shapes, or where bytes and shapes disagree.
absl::StatusOr<Response> DecodeResponse(grpc::ByteBuffer& message, const ResponseShapes& expected,
                                        const ResultBuffers& buffers);

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_CPP_WIRE_H_
