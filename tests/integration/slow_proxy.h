// A slow network between a client and a server: relays loopback connections at a bounded rate.
#ifndef ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_
#define ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_

#include <atomic>
#include <cstdint>
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
  void Accept();
  void Relay(int from, int to, int64_t bytes_per_second);

  const int server_port_;
  const int64_t bytes_per_second_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> closed_{false};
  absl::Mutex mutex_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> relays_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_SLOW_PROXY_H_
