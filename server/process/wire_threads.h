// Threads for work that would hold up others: copying large tensors off the wire.
#ifndef ATTEND_SERVER_PROCESS_WIRE_THREADS_H_
#define ATTEND_SERVER_PROCESS_WIRE_THREADS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attend::server {

// Thread-safe. What waits is bounded by the calls in flight, each of which posts itself and a helper for each
// thread.
class WireThreads {
 public:
  explicit WireThreads(int64_t threads);
  // Runs what was posted, then ends.
  ~WireThreads();

  void Post(std::function<void()> task);
  int64_t size() const { return static_cast<int64_t>(threads_.size()); }

 private:
  void Run();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_WIRE_THREADS_H_
