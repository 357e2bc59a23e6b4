#include "tests/integration/slow_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace attend::integration {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Wakes whoever waits at either socket.
void End(int a, int b) {
  shutdown(a, SHUT_RDWR);
  shutdown(b, SHUT_RDWR);
}

bool SendAll(int to, const char* data, ssize_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(to, data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= sent;
  }
  return true;
}

}  // namespace

SlowProxy::SlowProxy(int port, int64_t bytes_per_second)
    : server_port_(port), bytes_per_second_(bytes_per_second), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener_, 64);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

SlowProxy::~SlowProxy() {
  closed_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  std::vector<std::thread> relays;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& weak : connections_) {
      if (const auto connection = weak.lock()) End(connection->client, connection->server);
    }
    relays = std::move(relays_);
  }
  for (std::thread& relay : relays) relay.join();
  close(listener_);
}

SlowProxy::Connection::~Connection() {
  close(client);
  close(server);
}

std::string SlowProxy::target() const { return absl::StrCat("127.0.0.1:", port_); }

void SlowProxy::Accept() {
  for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0;) {
    const auto connection = std::make_shared<Connection>();
    connection->client = client;
    connection->server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(server_port_);
    const bool connected =
        connect(connection->server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    absl::MutexLock lock(&mutex_);
    if (!connected || closed_) continue;
    connections_.push_back(connection);
    for (const bool to_server : {true, false}) {
      relays_.emplace_back([connection, to_server, this] { Relay(*connection, to_server); });
    }
  }
}

void SlowProxy::Relay(const Connection& connection, bool to_server) {
  const int from = to_server ? connection.client : connection.server;
  const int to = to_server ? connection.server : connection.client;
  std::vector<char> buffer(64 << 10);
  const absl::Time start = absl::Now();
  int64_t relayed = 0;
  for (ssize_t n; (n = recv(from, buffer.data(), buffer.size(), 0)) > 0 && SendAll(to, buffer.data(), n);) {
    relayed += n;
    if (!to_server) continue;
    const absl::Time due =
        start + absl::Seconds(static_cast<double>(relayed) / static_cast<double>(bytes_per_second_));
    if (due > absl::Now() && !closed_) absl::SleepFor(due - absl::Now());
  }
  End(from, to);
}

}  // namespace attend::integration
