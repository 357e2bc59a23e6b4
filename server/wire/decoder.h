// Reads an AttendRequest from the slices that gRPC received: specs first, checked before any tensor
// memory is taken, then each tensor's bytes copied once, from the slices to where the device reads them.
#ifndef ATTEND_SERVER_WIRE_DECODER_H_
#define ATTEND_SERVER_WIRE_DECODER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/call.h"
#include "server/memory/host_pool.h"

namespace attend::server {

struct DecodeLimits {
  int64_t request_bytes_max = int64_t{1} << 31;
  int64_t batch_max = 65536;  // sequences in a call
  int64_t heads_max = 65536;
  int64_t weight_rows_max = 65536;
};

// One request. Not thread-safe.
class AttendDecoder {
 public:
  // Takes the message's slices by reference and empties the buffer.
  AttendDecoder(grpc::ByteBuffer* message, const DecodeLimits& limits);
  ~AttendDecoder();

  // Reads up to the first tensor byte (all of the message where its fields come in another order) and
  // checks everything: all violations at once (error.h), no tensor memory taken.
  absl::Status ReadSpecs();
  const Call& call() const;

  // Bytes of the block that ReadTensors fills: every input tensor, each 256-byte aligned, weight_rows
  // included. Valid after ReadSpecs.
  int64_t input_bytes() const;

  // A tensor's bytes are complete in the block: its offset and size. Lets a copy to the device start.
  using OnTensor = std::function<void(int64_t offset, int64_t bytes)>;

  // Copies the tensors into inputs (input_bytes() or more) and points tensors' inputs into it; slices
  // are released as they are read. Checks what only the bytes can tell (mask values are 0 or 1).
  absl::Status ReadTensors(const HostBlock& inputs, CallTensors* tensors, const OnTensor& on_tensor = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes of the block for a call's outputs: out, lse, weights, each 256-byte aligned; and the tensors'
// outputs pointed into it.
int64_t OutputBytes(const Call& call);
void PlaceOutputs(const Call& call, const HostBlock& outputs, CallTensors* tensors);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_DECODER_H_
