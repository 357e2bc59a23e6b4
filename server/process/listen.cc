#include "server/process/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

constexpr char kForm[] = "give host:port, with a port from 0 to 65535, or unix:path";

absl::Status CannotListen(const std::string& address, const char* why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

absl::Status CheckUnix(const std::string& address) {
  const std::string path = address.substr(absl::StartsWith(address, "unix://") ? 7 : 5);
  sockaddr_un name{};
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return CannotListen(address, "the path is empty or too long");
  }
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return CannotListen(address, std::strerror(errno));
  const bool answered = connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
  close(fd);
  return answered ? CannotListen(address, "another server listens there") : absl::OkStatus();
}

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// What a host (empty: every address with AI_PASSIVE in flags, else this machine) and a port stand for; null
// where they stand for nothing, and then why is in *error (gai_strerror), where that is not null.
Addresses Resolve(const std::string& host, const std::string& port, int flags, int* error = nullptr) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int resolved = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error != nullptr) *error = resolved;
  return Addresses(resolved == 0 ? found : nullptr);
}

absl::Status CheckTcp(const std::string& address, const std::string& host, const std::string& port) {
  int resolved = 0;
  const Addresses found = Resolve(host, port, AI_PASSIVE, &resolved);
  if (found == nullptr) return CannotListen(address, gai_strerror(resolved));
  const int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    const int on = 1;  // as servers do: connections in TIME_WAIT are no obstacle
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
    close(fd);
  }
  return error == 0 ? absl::OkStatus() : CannotListen(address, std::strerror(error));
}

// Splits "host:port", "[v6]:port"; false where there is no port from 0 to 65535 (getaddrinfo takes larger
// ones, and drops their upper bits).
bool SplitHostPort(absl::string_view address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == address.size()) return false;
  absl::string_view name = address.substr(0, colon);
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  *host = std::string(name);
  *port = std::string(address.substr(colon + 1));
  uint32_t number = 0;
  return absl::SimpleAtoi(*port, &number) && number <= UINT16_MAX;
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  std::string host, port;
  if (absl::StartsWith(address, "unix:") || SplitHostPort(address, &host, &port)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", address, "': ", kForm));
}

bool IsLocalAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  std::string host, port;
  if (!SplitHostPort(address, &host, &port)) return false;
  // Only literal 127.0.0.0/8: a name such as 127.evil.example is none.
  const bool loopback4 =
      absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "::1" || loopback4;
}

std::vector<std::string> ResolveAddress(const std::string& address) {
  std::string host, port;
  if (absl::StartsWith(address, "unix:") || !SplitHostPort(address, &host, &port) || host.empty()) {
    return {address};
  }
  const Addresses found = Resolve(host, port, AI_PASSIVE);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    char name[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    addresses.push_back(one->ai_family == AF_INET6 ? absl::StrCat("[", name, "]:", port)
                                                   : absl::StrCat(name, ":", port));
  }
  return addresses.size() > 1 ? addresses : std::vector<std::string>{address};
}

std::string WithPort(const std::string& address, int port) {
  if (port == 0 || absl::StartsWith(address, "unix:") || !absl::EndsWith(address, ":0")) return address;
  return absl::StrCat(address.substr(0, address.size() - 1), port);
}

absl::Status CheckBindable(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return CheckUnix(address);
  std::string host, port;
  if (!SplitHostPort(address, &host, &port)) return CannotListen(address, kForm);
  return CheckTcp(address, host, port);
}

void Touch(const std::string& address, int port) {
  std::string host, ignored;
  if (!SplitHostPort(address, &host, &ignored)) return;
  const Addresses found = Resolve(host, std::to_string(port), 0);
  if (found == nullptr) return;
  const int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  if (fd >= 0) {
    // Whether it is accepted does not matter.
    (void)connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
}

}  // namespace attend::server
