#include "tests/integration/server_process.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace attend::integration {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(60);
constexpr absl::Duration kPoll = absl::Milliseconds(5);

}  // namespace

std::string ServerBinary() {
  const char* const named = std::getenv("ATTEND_SERVER_BINARY");
  return named != nullptr ? named : ATTEND_SERVER_BINARY;
}

ServerProcess::ServerProcess(std::vector<std::string> flags, const std::string& binary) {
  std::string folder = (std::filesystem::temp_directory_path() / "attend-test-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return;
  folder_ = folder;
  std::vector<std::string> args = {binary, "--address=127.0.0.1:0", "--metrics-address=127.0.0.1:0",
                                   "--device=null", absl::StrCat("--port-file=", folder_, "/ports")};
  for (std::string& flag : flags) {
    // The last of a flag given twice would win for some parsers only: ours goes.
    const std::string name = flag.substr(0, flag.find('=')) + "=";
    std::erase_if(args, [&](const std::string& arg) { return arg.rfind(name, 0) == 0; });
    args.push_back(std::move(flag));
  }
  process_ = std::make_unique<ChildProcess>(args);
  const absl::Time limit = absl::Now() + kStartLimit;
  while (!ReadPorts()) {
    if (absl::Now() > limit) Signal(SIGKILL);
    if (WaitForExit(absl::ZeroDuration()) != -1) return;
    absl::SleepFor(kPoll);
  }
}

ServerProcess::~ServerProcess() {
  process_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

bool ServerProcess::ReadPorts() {
  std::ifstream file(folder_ + "/ports");
  return static_cast<bool>(file >> port_ >> metrics_port_);
}

std::string ServerProcess::target() const { return absl::StrCat("127.0.0.1:", port_); }

std::shared_ptr<grpc::Channel> ServerProcess::Connect(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // or channels to one target share a connection
  return grpc::CreateCustomChannel(target(), credentials, args);
}

std::string ServerProcess::Log() const { return process_ != nullptr ? process_->Output() : ""; }

int64_t ServerProcess::ResidentBytes() const { return ATTEND_SANITIZED ? 0 : process_->ResidentBytes(); }

int64_t ServerProcess::PageFaults() const {
  std::ifstream file(absl::StrCat("/proc/", process_->pid(), "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // The program's name, in parentheses, is the second field; minor faults are the tenth.
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 1), ' ');
  int64_t faults = -1;
  return fields.size() > 8 && absl::SimpleAtoi(fields[8], &faults) ? faults : -1;
}

void ServerProcess::Signal(int signal) {
  if (running()) process_->Signal(signal);
}

int ServerProcess::WaitForExit(absl::Duration limit) {
  return process_ != nullptr ? process_->Wait(limit).value_or(-1) : -1;
}

}  // namespace attend::integration
