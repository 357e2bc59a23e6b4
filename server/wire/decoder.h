// Reads an AttendRequest from the slices that gRPC received: specs first, checked before any tensor
// memory is taken, then each tensor's bytes copied once, from the slices to where the device reads them.
//
// The message lies in memory whole when the decoder gets it, so ReadSpecs walks over its fields without
// touching tensor bytes and knows where each tensor lies, whatever the order of fields: every order and
// encoding takes this one path.
#ifndef ATTEND_SERVER_WIRE_DECODER_H_
#define ATTEND_SERVER_WIRE_DECODER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/call.h"
#include "server/memory/host_pool.h"
#include "server/wire/limits.h"

namespace attend::server {

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

  // Bytes of the block that ReadTensors fills: every input tensor, each 256-byte aligned, weight_rows
  // included; 256 at least, so that a block of it can be asked for.
  int64_t input_bytes() const;

  // A tensor's bytes are complete in the block: its offset and size. Lets a copy to the device start.
  using OnTensor = std::function<void(int64_t offset, int64_t bytes)>;

  // Copies the tensors into inputs (input_bytes() or more) and points tensors' inputs into it; each slice
  // is released as soon as it is read. Checks what only the bytes can tell (mask bytes are 0 or 1). Call
  // it once: the slices are gone then.
  absl::Status ReadTensors(const HostBlock& inputs, CallTensors* tensors, const OnTensor& on_tensor = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes of the block for a call's outputs: out, lse, weights, each 256-byte aligned, 256 at least; and
// the tensors' outputs pointed into it.
int64_t OutputBytes(const Call& call);
void PlaceOutputs(const Call& call, const HostBlock& outputs, CallTensors* tensors);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_DECODER_H_
