// The hot methods as a generic callback service: the same bytes on the wire, but a call's code runs when
// its headers arrive, before its message is read into memory.
#ifndef ATTEND_SERVER_PROCESS_ATTEND_SERVICE_H_
#define ATTEND_SERVER_PROCESS_ATTEND_SERVICE_H_

#include <grpcpp/generic/async_generic_service.h>

#include "server/process/attend_call.h"

namespace attend::server {

// Gets Attend and every method that no other service of the server has; those are UNIMPLEMENTED.
class AttendService final : public grpc::CallbackGenericService {
 public:
  explicit AttendService(const CallServices& services) : services_(services) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  const CallServices services_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_ATTEND_SERVICE_H_
