// Writes an AttendResponse as slices: a small header of our own and slices that alias the output block,
// which is given back when gRPC has sent them. No tensor byte is copied.
#ifndef ATTEND_SERVER_WIRE_ENCODER_H_
#define ATTEND_SERVER_WIRE_ENCODER_H_

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/runtime/job.h"

namespace attend::server {

// The reply of a job that finished well: its output tensors as PlaceOutputs placed them, and its report.
// Takes its output block, which goes back to its pool, from any thread, with the last of the buffer's
// slices.
grpc::ByteBuffer EncodeResponse(Job& job);

// The status as callers see it: google.rpc.Status in the details, with ErrorInfo (domain "attend"), and
// BadRequest and RetryInfo where the status carries them (error.h). Cut so that message and details stay
// under 8 KB on the wire, whatever is in the status; BadRequest then says how many violations it lacks.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_ENCODER_H_
