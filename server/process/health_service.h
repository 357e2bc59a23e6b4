// grpc.health.v1.Health, on the threads that serve everything else.
//
// gRPC's own health service is a callback service, and threads of the callback API look for work on every
// connection beside ours: at 1 KiB that costs a call a fifth of its CPU time in wake-ups.
#ifndef ATTEND_SERVER_PROCESS_HEALTH_SERVICE_H_
#define ATTEND_SERVER_PROCESS_HEALTH_SERVICE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/process/generic_server.h"

namespace attend::server {

// Thread-safe.
class HealthService {
 public:
  // Values of HealthCheckResponse.ServingStatus.
  enum class Status { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

  // All names, NOT_SERVING at first. Others are unknown: NOT_FOUND to Check, SERVICE_UNKNOWN to Watch.
  // watches_max: calls of Watch at once.
  HealthService(const std::vector<std::string>& names, int64_t watches_max);
  ~HealthService();  // no call is left

  // Of every name; tells the watchers.
  void Set(Status status);
  // Ends every watch, and those to come at once: UNAVAILABLE.
  void Shutdown();

  // The reply to a request of Check, both serialised.
  absl::StatusOr<std::string> Check(const std::string& request);
  // The handler of a call of Watch; null where watches_max are there.
  GenericCall::Handler* Watch(GenericCall* call);

 private:
  class Watcher;

  Status StatusOf(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t watches_max_;
  absl::Mutex mutex_;
  int64_t watches_ ABSL_GUARDED_BY(mutex_) = 0;  // those without a request yet, too
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Status> names_ ABSL_GUARDED_BY(mutex_);
  std::list<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_HEALTH_SERVICE_H_
