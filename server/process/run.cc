#include "server/process/run.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "attend_version.h"
#include "server/process/credentials.h"
#include "server/process/log.h"
#include "server/process/machine.h"
#include "server/process/options.h"
#include "server/process/server.h"

namespace attend::server {
namespace {

constexpr int kExitFault = 1;
constexpr int kExitUsage = 2;
constexpr long kHealthIntervalNs = 100'000'000;
// After the drain's own limit: time in which what was cancelled ends. A device that hangs never does, and
// neither gRPC nor the scheduler lets go of memory that it may still write to.
constexpr absl::Duration kEndGrace = absl::Seconds(5);

int Refuse(const absl::Status& status, int code) {
  std::fprintf(stderr, "attend-server: %s\n", std::string(status.message()).c_str());
  return code;
}

// Two lines, the gRPC port and the HTTP port, there at once or not at all.
absl::Status WritePortFile(const std::string& path, int grpc_port, int http_port) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream(temporary) << grpc_port << "\n" << http_port << "\n";
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write --port-file ", path));
  }
  return absl::OkStatus();
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Waits for a signal to stop (returned) or a fault of the server (0).
int AwaitEnd(Server* server, absl::Status* fault) {
  const sigset_t signals = StopSignals();
  const timespec interval = {0, kHealthIntervalNs};
  while (true) {
    const int signal = sigtimedwait(&signals, nullptr, &interval);
    if (signal > 0) return signal;
    *fault = server->Health();
    if (!fault->ok()) return 0;
  }
}

// Ends the process, whatever it does, at a second signal or when the time is up.
void EndProcessIn(absl::Duration limit) {
  std::thread([limit] {
    const sigset_t signals = StopSignals();
    const timespec time = absl::ToTimespec(limit);
    int again = 0;
    do {
      again = sigtimedwait(&signals, nullptr, &time);
    } while (again < 0 && errno == EINTR);
    if (again > 0) _exit(128 + again);
    Log(LogLevel::kError, "stopped: what still ran has not ended in time", {{"all_answered", "false"}});
    _exit(kExitFault);
  }).detach();
}

// A connection takes a file descriptor, and the soft limit is a shell's default rather than the operator's
// word.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Serve(const ServerOptions& options) {
  KeepFreedMemory(options.receive_keep_bytes);
  auto started = Server::Start(options);
  if (!started.ok()) return Refuse(started.status(), kExitFault);
  const std::unique_ptr<Server> server = *std::move(started);
  if (!options.port_file.empty()) {
    const absl::Status written = WritePortFile(options.port_file, server->grpc_port(), server->http_port());
    if (!written.ok()) return Refuse(written, kExitFault);
  }
  Log(LogLevel::kInfo, "serving",
      {{"version", ATTEND_VERSION},
       {"address", options.address},
       {"port", int64_t{server->grpc_port()}},
       {"http_port", int64_t{server->http_port()}},
       {"tls", server->tls()},
       {"tokens", server->tokens()},
       {"devices", server->Describe()}});

  absl::Status fault;
  const int signal = AwaitEnd(server.get(), &fault);
  if (signal == 0) {
    Log(LogLevel::kError, "a fault; draining", {{"fault", std::string(fault.message())}});
  } else {
    Log(LogLevel::kInfo, "draining", {{"signal", std::string(strsignal(signal))}});
  }
  const absl::Duration delay = signal == 0 ? absl::ZeroDuration() : options.drain_delay;
  EndProcessIn(delay + options.drain_timeout + kEndGrace);
  const bool whole = server->Drain(delay);
  Log(whole ? LogLevel::kInfo : LogLevel::kWarn, "stopped", {{"all_answered", whole ? "true" : "false"}});
  return whole && signal != 0 ? 0 : kExitFault;
}

}  // namespace

int RunMain(int argc, const char* const* argv) {
  ParsedOptions parsed = ParseOptions(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  const absl::Status resolved = ResolveOptions(&parsed.options);
  if (!resolved.ok()) return Refuse(resolved, kExitUsage);
  if (parsed.options.print_config) {
    std::fputs(PrintConfig(parsed.options).c_str(), stdout);
    return 0;
  }
  InitLog(parsed.options.log_format, parsed.options.log_level);
  for (const std::string& warning : parsed.warnings) Log(LogLevel::kWarn, warning);
  if (parsed.options.check_config) {
    const auto credentials = LoadCredentials(parsed.options);
    if (!credentials.ok()) return Refuse(credentials.status(), kExitUsage);
    std::puts("the configuration is right");
    return 0;
  }
  // The distribution's Abseil looks for lock cycles at run time, as a build for debugging would.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Before any thread starts, so that all of them leave these signals to AwaitEnd.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  RaiseFileLimit();
  return Serve(parsed.options);
}

}  // namespace attend::server
