#include "tests/integration/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

extern char** environ;

namespace attend {
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

// The body of an HTTP GET from a loopback port; empty where it fails.
std::string HttpGet(int port, const std::string& path) {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  if (s < 0) return "";
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (connect(s, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    if (write(s, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[65536];
      for (ssize_t n; (n = read(s, buffer, sizeof(buffer))) > 0;) reply.append(buffer, n);
    }
  }
  close(s);
  const size_t body = reply.find("\r\n\r\n");
  return body == std::string::npos ? "" : reply.substr(body + 4);
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

std::unique_ptr<ServerProcess> ServerProcess::Start(const std::vector<std::string>& flags) {
  const char* const program = std::getenv("ATTEND_SERVER");
  if (program == nullptr) std::abort();
  auto server = std::unique_ptr<ServerProcess>(new ServerProcess);
  server->port_file_ = TemporaryFile();
  std::vector<std::string> argv = {program, "--address=127.0.0.1:0", "--metrics-address=127.0.0.1:0",
                                   absl::StrCat("--port-file=", server->port_file_)};
  argv.insert(argv.end(), flags.begin(), flags.end());
  server->process_ = std::make_unique<ChildProcess>(argv);
  for (const absl::Time until = absl::Now() + absl::Seconds(60); absl::Now() < until;) {
    std::istringstream ports(ReadFile(server->port_file_));
    if (ports >> server->grpc_port_ >> server->http_port_) return server;
    if (server->process_->Wait(kPoll)) break;
  }
  std::fprintf(stderr, "attend-server does not serve:\n%s\n", server->process_->Output().c_str());
  return nullptr;
}

ServerProcess::~ServerProcess() { unlink(port_file_.c_str()); }

std::string ServerProcess::target() const { return absl::StrCat("127.0.0.1:", grpc_port_); }

std::optional<double> ServerProcess::Metric(const std::string& name) const {
  std::optional<double> sum;
  for (const absl::string_view line : absl::StrSplit(HttpGet(http_port_, "/metrics"), '\n')) {
    const size_t space = line.rfind(' ');
    if (space == absl::string_view::npos || line[0] == '#') continue;
    const absl::string_view sample = line.substr(0, space);
    if (sample != name && sample.substr(0, sample.find('{')) != name) continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) sum = sum.value_or(0) + value;
  }
  return sum;
}

bool ServerProcess::AwaitMetric(const std::string& name, double value) const {
  for (const absl::Time until = absl::Now() + absl::Seconds(10); absl::Now() < until;) {
    if (Metric(name) == value) return true;
    absl::SleepFor(kPoll);
  }
  std::fprintf(stderr, "%s is %g, not %g\n", name.c_str(), Metric(name).value_or(-1), value);
  return false;
}

int64_t ServerProcess::ResidentBytes() const { return attend::ResidentBytes(process_->pid()); }

int64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/statm"));
  int64_t pages = 0;
  status >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace attend
