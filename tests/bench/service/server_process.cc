#include "tests/bench/service/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace attend::bench {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

struct Child {
  pid_t pid;
  int in, out;
};

Child Spawn(const std::vector<std::string>& command) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("pipe failed");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a benchmark that is killed leaves no server behind
    dup2(in[0], 0);
    dup2(out[1], 1);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  return {pid, in[1], out[0]};
}

}  // namespace

ServerProcess ServerProcess::Attend(const std::string& binary, const std::vector<std::string>& flags) {
  char folder[] = "/tmp/attend-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) Die("mkdtemp failed");
  const std::string port_file = std::string(folder) + "/ports";
  std::vector<std::string> command = {binary, "--address=127.0.0.1:0", "--metrics-address=off",
                                      "--log-level=warn", "--port-file=" + port_file};
  command.insert(command.end(), flags.begin(), flags.end());
  ServerProcess server;
  const Child child = Spawn(command);
  server.pid_ = child.pid;
  server.stdin_ = child.in;
  close(child.out);
  for (int i = 0; i < 1000 && server.port_ == 0; ++i) {
    std::ifstream(port_file) >> server.port_;
    usleep(10'000);
  }
  unlink(port_file.c_str());
  rmdir(folder);
  if (server.port_ == 0) Die(binary + " did not start");
  return server;
}

std::optional<ServerProcess> ServerProcess::Peer(const std::vector<std::string>& command, std::string* why) {
  ServerProcess server;
  const Child child = Spawn(command);
  server.pid_ = child.pid;
  server.stdin_ = child.in;
  FILE* out = fdopen(child.out, "r");
  char line[256] = {};
  if (std::fgets(line, sizeof(line), out) == nullptr) std::snprintf(line, sizeof(line), "it did not start");
  std::fclose(out);
  server.port_ = std::atoi(line);
  if (server.port_ > 0) return server;
  *why = line;
  why->erase(why->find_last_not_of('\n') + 1);
  return std::nullopt;
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), stdin_(std::exchange(other.stdin_, -1)), port_(other.port_) {}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  close(stdin_);
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

void ServerProcess::ResetPeak() const { std::ofstream("/proc/" + std::to_string(pid_) + "/clear_refs") << 5; }

int64_t ServerProcess::StatusBytes(const std::string& key) const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

}  // namespace attend::bench
