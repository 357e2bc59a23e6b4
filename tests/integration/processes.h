// Programs that tests run as processes of their own.
#ifndef ATTEND_TESTS_INTEGRATION_PROCESSES_H_
#define ATTEND_TESTS_INTEGRATION_PROCESSES_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace attend::integration {

// A child process; killed and reaped when destroyed. It ends with the thread that made it, so that a test
// that crashes leaves none behind: make it where it is used. Its output goes to a file. Not thread-safe.
class ChildProcess {
 public:
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

 private:
  std::string output_path_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_PROCESSES_H_
