// A server as a process of its own, as it is in use.
#ifndef ATTEND_TESTS_BENCH_SERVICE_SERVER_PROCESS_H_
#define ATTEND_TESTS_BENCH_SERVICE_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attend::bench {

class ServerProcess {
 public:
  // attend-server with these flags, on free ports; ready when it returns.
  static ServerProcess Attend(const std::string& binary, const std::vector<std::string>& flags);
  // A peer: a program that prints its port on a line of its own and serves until its standard input ends. One
  // that prints anything else cannot run here: the line is then in `why`, and there is no value.
  static std::optional<ServerProcess> Peer(const std::vector<std::string>& command, std::string* why);
  ServerProcess(ServerProcess&& other) noexcept;
  ~ServerProcess();  // stops it

  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }
  // Resident bytes now, and the most since the last call of ResetPeak.
  int64_t ResidentBytes() const { return StatusBytes("VmRSS"); }
  int64_t PeakBytes() const { return StatusBytes("VmHWM"); }
  void ResetPeak() const;

 private:
  ServerProcess() = default;
  int64_t StatusBytes(const std::string& key) const;

  pid_t pid_ = -1;
  int stdin_ = -1;  // closing it ends a peer
  int port_ = 0;
};

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_SERVICE_SERVER_PROCESS_H_
