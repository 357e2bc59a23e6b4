// Figures of this process, from /proc.
#ifndef ATTEND_SERVER_METRICS_PROCESS_METRICS_H_
#define ATTEND_SERVER_METRICS_PROCESS_METRICS_H_

#include <optional>

namespace attend::server {

// What cannot be read is absent, never 0.
struct ProcessFigures {
  std::optional<double> cpu_seconds, resident_bytes, virtual_bytes, open_fds, max_fds, threads,
      start_time_seconds;
};
ProcessFigures ReadProcessFigures();

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_PROCESS_METRICS_H_
