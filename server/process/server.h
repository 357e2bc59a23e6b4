// The server put together: devices, scheduler, gRPC, HTTP, and the way they start and end.
#ifndef ATTEND_SERVER_PROCESS_SERVER_H_
#define ATTEND_SERVER_PROCESS_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/process/options.h"
#include "server/runtime/scheduler.h"

namespace attend::server {

struct Gpus;

// What the scheduler of a server with these options is made with. options are resolved.
SchedulerOptions MakeSchedulerOptions(const ServerOptions& options);

// Thread-safe but for Drain and the destructor, which are called once.
class Server {
 public:
  // Opens devices and ports; ready when it returns. options are resolved. The error is one line for the
  // operator.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // The same on other GPUs than this machine's, for tests. gpus is used only until it returns.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, const Gpus& gpus);
  virtual ~Server() = default;

  // Of the first TCP address; 0 where all are unix:.
  virtual int grpc_port() const = 0;
  virtual int http_port() const = 0;  // 0: none
  // What the line that says the server is up tells.
  virtual std::string Describe() const = 0;
  // "off", "on", or "mutual" where clients have to show a certificate.
  virtual std::string tls() const = 0;
  virtual int64_t tokens() const = 0;  // 0: calls need none

  // OK, or the fault that makes the server useless: health is NOT_SERVING then, and the process should
  // end with an error.
  virtual absl::Status Health() = 0;

  // Readiness and health first, then the delay (--drain-delay) in which calls are still taken, then no new
  // ones; waits until all accepted calls are answered, at most --drain-timeout. False where calls had to be
  // cancelled.
  virtual bool Drain(absl::Duration delay) = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_SERVER_H_
