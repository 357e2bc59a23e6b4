// Looks at files again while the server runs, and says in the log and the metrics what came of it.
#ifndef ATTEND_SERVER_PROCESS_RELOADER_H_
#define ATTEND_SERVER_PROCESS_RELOADER_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/metrics/metrics.h"

namespace attend::server {

class Reloader {
 public:
  struct Source {
    std::string files;  // "tls" or "tokens"
    // True where something new was taken.
    std::function<absl::StatusOr<bool>()> reload;
  };

  // From a thread of its own, every interval; never where that is zero or nothing is to be reloaded. An error
  // is counted each time and logged when it is another than the last time.
  Reloader(std::vector<Source> sources, absl::Duration interval, Metrics* metrics);
  ~Reloader();

 private:
  void Run();

  const std::vector<Source> sources_;
  const absl::Duration interval_;
  Metrics* const metrics_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_RELOADER_H_
