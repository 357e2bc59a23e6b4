#include "tests/integration/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace attend::integration {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);

std::string TemporaryFile() {
  const char* const directory = std::getenv("TMPDIR");
  std::string path = absl::StrCat(directory != nullptr ? directory : "/tmp", "/attend_test_XXXXXX");
  const int file = mkstemp(path.data());
  if (file < 0) std::abort();
  close(file);
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& argv) : output_path_(TemporaryFile()) {
  const int output = open(output_path_.c_str(), O_WRONLY | O_TRUNC | O_APPEND | O_CLOEXEC);
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const pid_t parent = getpid();
  if (output >= 0) pid_ = fork();
  if (pid_ < 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", args[0], strerror(errno));
    std::abort();
  }
  if (pid_ == 0) {  // only what is safe beside the threads that are gone
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it has ended before that
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execvp(args[0], args.data());
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", args[0], strerror(errno));
    _exit(127);
  }
  close(output);
}

ChildProcess::~ChildProcess() {
  if (!code_) {
    Signal(SIGKILL);
    Wait();
  }
  unlink(output_path_.c_str());
}

void ChildProcess::Signal(int signal) {
  if (!code_) kill(pid_, signal);
}

std::optional<int> ChildProcess::Wait(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (!code_) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) {
      code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (ended < 0 && errno != EINTR) {
      code_ = -1;
    } else if (absl::Now() >= until) {
      return std::nullopt;
    } else {
      absl::SleepFor(kPoll);
    }
  }
  return code_;
}

std::string ChildProcess::Output() const { return ReadFile(output_path_); }

void ChildProcess::ResetPeak() const { std::ofstream(absl::StrCat("/proc/", pid_, "/clear_refs")) << 5; }

int64_t ChildProcess::StatusBytes(const std::string& key) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

double ChildProcess::CpuSeconds() const {
  double nanoseconds = 0;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/task"), gone)) {
    double spent = 0;
    if (std::ifstream(task.path() / "schedstat") >> spent) nanoseconds += spent;
  }
  return nanoseconds * 1e-9;
}

}  // namespace attend::integration
