#include "tests/integration/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

extern char** environ;

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
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output_path_.c_str(), O_WRONLY | O_TRUNC | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const int error = posix_spawn(&pid_, args[0], &actions, nullptr, args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", args[0], strerror(error));
    std::abort();
  }
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

}  // namespace attend::integration
