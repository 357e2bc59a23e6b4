// Writes an AttendResponse as slices: a small header of our own and slices that alias the output block,
// which is given back when gRPC has sent them. No tensor byte is copied.
#ifndef ATTEND_SERVER_WIRE_ENCODER_H_
#define ATTEND_SERVER_WIRE_ENCODER_H_

#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/runtime/job.h"

namespace attend::server {

// The reply of a finished job; takes its output block.
grpc::ByteBuffer EncodeResponse(Job& job);

// The status as callers see it: google.rpc.Status in the details, with BadRequest, ErrorInfo (domain
// "attend") and RetryInfo where the status carries them; cut to stay under 8 KB.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_ENCODER_H_
