#include "server/process/attend_service.h"

namespace attend::server {
namespace {

constexpr char kAttendMethod[] = "/attend.v1.AttentionService/Attend";

class UnknownMethod final : public grpc::ServerGenericBidiReactor {
 public:
  UnknownMethod() { Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "the server has no such method")); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* AttendService::CreateReactor(grpc::GenericCallbackServerContext* context) {
  if (context->method() != kAttendMethod) {
    services_.metrics->OnRejected("unimplemented");
    return new UnknownMethod();
  }
  return new AttendCall(services_, context);
}

}  // namespace attend::server
