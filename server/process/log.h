// Structured logs on standard error: a message and fields, as lines for people or as JSON. Never holds
// tensor contents. Thread-safe.
#ifndef ATTEND_SERVER_PROCESS_LOG_H_
#define ATTEND_SERVER_PROCESS_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attend::server {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

struct LogField {
  std::string key;
  std::variant<int64_t, double, std::string> value;  // a double with one decimal
};

// format: "plain" or "json"; level: "debug", "info", "warn", "error". Also routes gRPC's own messages
// (errors only) into this log. Until it is called, plain lines from info up are written.
void InitLog(absl::string_view format, absl::string_view level);

// What gRPC said when a listener of its ended; empty while all live. One that cannot accept (no file
// descriptor is free) never does again in gRPC 1.51, and its log is the only one to tell.
std::string ListenerFault();

void Log(LogLevel level, absl::string_view message, const std::vector<LogField>& fields = {});

// A bucket of tokens, refilled at rate a second up to one second's worth.
class RateLimit {
 public:
  explicit RateLimit(int64_t per_second)
      : per_second_(per_second), tokens_(static_cast<double>(per_second)) {}
  // Whether one more may pass now.
  bool Take(absl::Time now);

 private:
  const int64_t per_second_;
  absl::Mutex mutex_;
  double tokens_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_LOG_H_
