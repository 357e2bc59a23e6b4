// Reads an AttendRequest from the slices that gRPC received: specs first, checked before any tensor
// memory is taken, then each tensor's bytes copied once, from the slices to where the device reads them.
//
// The message lies in memory whole when the decoder gets it, so ReadSpecs walks over its fields without
// touching tensor bytes and knows where each tensor lies, whatever the order of fields: every order and
// encoding takes this one path.
#ifndef ATTEND_SERVER_WIRE_DECODER_H_
#define ATTEND_SERVER_WIRE_DECODER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "kernels/call.h"
#include "server/memory/host_pool.h"
#include "server/wire/limits.h"

namespace attend::server {

// A tensor's place in the block, and how many of its pieces are still to be copied there.
struct TensorArrival {
  std::span<const std::byte> bytes;
  std::atomic<int64_t> pieces_left{0};
};

// A range of one tensor's bytes on its way from the message to its place in the block. Pieces of a message
// share nothing that is not counted by atomics: each may be copied on a thread of its own.
class TensorPiece {
 public:
  // bytes of what the slices hold after the first `skip`. The tensor outlives the piece.
  TensorPiece(TensorArrival* tensor, std::vector<grpc::Slice> slices, int64_t skip, std::byte* to,
              int64_t bytes)
      : tensor_(tensor), slices_(std::move(slices)), skip_(skip), to_(to), bytes_(bytes) {}
  ~TensorPiece();
  TensorPiece(TensorPiece&&) = default;
  TensorPiece& operator=(TensorPiece&&) = delete;
  // Once. Slices are dropped soon after they have been read. Gives the whole tensor where this was the last
  // of its pieces, in its place in the block, else nothing.
  std::span<const std::byte> Copy();

 private:
  TensorArrival* tensor_;
  std::vector<grpc::Slice> slices_;
  int64_t skip_;
  std::byte* to_;
  int64_t bytes_;
};

// One request. Not thread-safe.
class AttendDecoder {
 public:
  // Takes the message's slices by reference and empties the buffer.
  AttendDecoder(grpc::ByteBuffer* message, const DecodeLimits& limits);
  ~AttendDecoder();

  // Reads and checks everything but the tensors' bytes: all violations at once (error.h), no tensor
  // memory taken. Call it once.
  absl::Status ReadSpecs();

  // The rest is valid after an OK from ReadSpecs.
  const Call& call() const;

  // Bytes of the block that the tensors fill: every input tensor, each 256-byte aligned, weight_rows
  // included; 256 at least, so that a block of it can be asked for.
  int64_t input_bytes() const;

  // Points tensors' inputs into inputs (input_bytes() or more) and gives the copies that fill them, in the
  // order of the message, none larger than piece_bytes. Call it once: the pieces own the message's slices.
  // They do not outlive the decoder.
  absl::StatusOr<std::vector<TensorPiece>> CutTensors(const HostBlock& inputs, CallTensors* tensors,
                                                      int64_t piece_bytes);
  // After every piece has been copied: what only the bytes can tell (mask bytes are 0 or 1).
  absl::Status CheckTensors(const CallTensors& tensors) const;

  // Points the inputs, copies all their bytes and checks them, on this thread: costs a small request less
  // than pieces do. Call it once, and instead of CutTensors.
  absl::Status ReadTensors(const HostBlock& inputs, CallTensors* tensors);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes for a call's outputs: out, lse, weights, each 256-byte aligned, 256 at least; and the tensors'
// outputs pointed into these.
int64_t OutputBytes(const Call& call);
void PlaceOutputs(const Call& call, std::byte* outputs, CallTensors* tensors);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_DECODER_H_
