// Programs that tests run as processes of their own.
#ifndef ATTEND_TESTS_INTEGRATION_PROCESSES_H_
#define ATTEND_TESTS_INTEGRATION_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace attend::integration {

// A child process; killed and reaped when destroyed. It ends with the thread that made it, so that a test
// that crashes leaves none behind: make it where it is used. Its output goes to a file. Not thread-safe.
class ChildProcess {
 public:
  // argv[0] is a path, or a name to look for in PATH.
  explicit ChildProcess(const std::vector<std::string>& argv);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return !code_; }  // as the last Wait saw it
  void Signal(int signal);
  // The exit code, or 128 + the signal that ended it; nullopt where it still runs when the time is up.
  std::optional<int> Wait(absl::Duration limit = absl::Seconds(120));
  // Standard output and error, so far.
  std::string Output() const;
  // Resident memory now, and the most since the last ResetPeak; 0 where the system does not say.
  int64_t ResidentBytes() const { return StatusBytes("VmRSS"); }
  int64_t PeakBytes() const { return StatusBytes("VmHWM"); }
  void ResetPeak() const;
  // Time that its threads, those that are there now, have spent on a CPU.
  double CpuSeconds() const;

 private:
  int64_t StatusBytes(const std::string& key) const;

  std::string output_path_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_PROCESSES_H_
