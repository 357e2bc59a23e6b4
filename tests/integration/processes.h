// Real processes for integration tests: attend-server, and clients of it.
#ifndef ATTEND_TESTS_INTEGRATION_PROCESSES_H_
#define ATTEND_TESTS_INTEGRATION_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace attend {

// A child process; killed and reaped when destroyed. Its output goes to a file.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& argv);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // The exit code, or 128 + the signal that ended it; nullopt where it still runs when the time is up.
  std::optional<int> Wait(absl::Duration limit = absl::Seconds(120));
  // Standard output and error, so far.
  std::string Output() const;

 private:
  std::string output_path_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// attend-server on free ports of the loopback address.
class ServerProcess {
 public:
  // Starts the program that ATTEND_SERVER names, and waits until it serves. Its output is printed, and
  // null returned, where it does not.
  static std::unique_ptr<ServerProcess> Start(const std::vector<std::string>& flags);
  ~ServerProcess();

  std::string target() const;  // 127.0.0.1:port
  ChildProcess& process() { return *process_; }
  // A sample of /metrics by its full name, labels included; the sum over all label sets where the name has
  // none. nullopt where there is no such sample, or no answer.
  std::optional<double> Metric(const std::string& name) const;
  // Waits until the metric has the value; false after ten seconds.
  bool AwaitMetric(const std::string& name, double value) const;
  int64_t ResidentBytes() const;

 private:
  ServerProcess() = default;
  std::string port_file_;
  std::unique_ptr<ChildProcess> process_;
  int grpc_port_ = 0;
  int http_port_ = 0;
};

// Resident memory of a process.
int64_t ResidentBytes(pid_t pid);

}  // namespace attend

#endif  // ATTEND_TESTS_INTEGRATION_PROCESSES_H_
