// grpc.reflection.v1.ServerReflection, and v1alpha, which has the same messages: what callers that know only
// the address, such as grpcurl, learn the API from.
//
// gRPC's own reflection is a service beside ours, on threads of its own, and cannot ask for a token.
#ifndef ATTEND_SERVER_PROCESS_REFLECTION_SERVICE_H_
#define ATTEND_SERVER_PROCESS_REFLECTION_SERVICE_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/process/call_registry.h"
#include "server/process/generic_server.h"

namespace attend::server {

// Thread-safe. Outlives its calls.
class ReflectionService {
 public:
  // services: full names, to list. Descriptors come from the process's own pool.
  explicit ReflectionService(std::vector<std::string> services);

  static bool IsMethod(absl::string_view method);
  // The handler of a call of such a method. A caller that is silent for longer than idle_max, or does not
  // read for so long, loses it.
  GenericCall::Handler* Handle(GenericCall* call, CallRegistry* registry, absl::Duration idle_max);
  // Ends every call, and those to come: UNAVAILABLE.
  void Shutdown() { shut_down_ = true; }

  // The ServerReflectionResponse to a ServerReflectionRequest, both serialised. What is not there, and what
  // cannot be parsed, is an error within the response.
  std::string Answer(const std::string& request) const;

 private:
  class Stream;

  const std::vector<std::string> services_;
  std::atomic<bool> shut_down_{false};
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_REFLECTION_SERVICE_H_
