// A real attend-server in a process of its own, for tests that call it over loopback.
#ifndef ATTEND_TESTS_INTEGRATION_SERVER_PROCESS_H_
#define ATTEND_TESTS_INTEGRATION_SERVER_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/integration/processes.h"

namespace attend::integration {

// The attend-server of this build, or where the environment's ATTEND_SERVER_BINARY says that it lies: for a
// test that is carried to another machine.
std::string ServerBinary();

// Killed, if it still runs, when destroyed. Not thread-safe.
class ServerProcess {
 public:
  // Starts attend-server on free ports of 127.0.0.1 with --device=null, unless flags say otherwise, and
  // waits until its ports are open. Where it ends before that, running() is false and Log() says why.
  explicit ServerProcess(std::vector<std::string> flags = {}, const std::string& binary = ServerBinary());
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool running() const { return process_ != nullptr && process_->running(); }
  std::string target() const;  // "127.0.0.1:port"
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }
  // A new connection, whose messages may have any size.
  std::shared_ptr<grpc::Channel> Connect(const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                             grpc::InsecureChannelCredentials()) const;

  const ChildProcess& process() const { return *process_; }  // of one that was running()

  std::string Log() const;  // what it wrote to stdout and stderr so far
  // Of its memory, now. 0 where it is built with sanitizers, which keep what is freed.
  int64_t ResidentBytes() const;
  // Pages that it had to be given so far; negative where the system does not say.
  int64_t PageFaults() const;
  void Signal(int signal);
  // Waits for its end: its exit code, 128 + n where signal n ended it, or -1 where it still runs.
  int WaitForExit(absl::Duration limit = absl::Seconds(60));
  int Stop() {  // as an operator does
    Signal(15);
    return WaitForExit();
  }

 private:
  bool ReadPorts();

  std::string folder_;  // its port file
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0, metrics_port_ = 0;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_SERVER_PROCESS_H_
