// A slow network between a client and a server: relays loopback connections at a bounded rate.
#ifndef ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_
#define ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attend::integration {

class SlowProxy {
 public:
  // Relays to 127.0.0.1:port. Each connection sends at most bytes_per_second towards the server; the way
  // back is not slowed.
  SlowProxy(int port, int64_t bytes_per_second);
  ~SlowProxy();  // ends all connections
  SlowProxy(const SlowProxy&) = delete;
  SlowProxy& operator=(const SlowProxy&) = delete;

  std::string target() const;

 private:
  // Both of its sockets, closed with the last relay between them: a peer that still sends is then told, where
  // one that was only shut down would let it wait.
  struct Connection {
    ~Connection();
    int client = -1, server = -1;
  };

  void Accept();
  void Relay(const Connection& connection, bool to_server);

  const int server_port_;
  const int64_t bytes_per_second_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> closed_{false};
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> relays_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_
