// Calls of attend.v1 with messages of any bytes, good or bad, as no client library would send them.
#ifndef ATTEND_TESTS_INTEGRATION_RAW_CLIENT_H_
#define ATTEND_TESTS_INTEGRATION_RAW_CLIENT_H_

#include <memory>
#include <string>
#include <vector>

#include "attend/v1/attention.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/error.h"

namespace attend::integration {

inline constexpr char kAttendMethod[] = "/attend.v1.AttentionService/Attend";

struct RawReply {
  grpc::Status status;
  grpc::ByteBuffer message;
  v1::AttendResponse Parse() const;
  // From the status's google.rpc.BadRequest.
  std::vector<server::Violation> Violations() const;
};

// Sends one message and waits for the answer, 30 s at most where context has no deadline. context may be
// null.
RawReply Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
              grpc::ClientContext* context = nullptr, const std::string& method = kAttendMethod);

// A valid request of fp16: q, k, v [1, heads, length, 64], BHLD.
v1::AttendRequest SimpleRequest(int64_t heads, int64_t length);
// One of 6 KiB, as bytes.
std::string SmallMessage();

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_RAW_CLIENT_H_
