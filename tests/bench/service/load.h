// A closed-loop load generator over raw bytes: as many calls in flight as asked for, over several
// connections, and as little work per call on the client's side as gRPC allows.
#ifndef ATTEND_TESTS_BENCH_SERVICE_LOAD_H_
#define ATTEND_TESTS_BENCH_SERVICE_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace attend::bench {

struct Load {
  std::string target;
  std::string method;
  std::string request;  // message bytes
  int connections = 1;
  int in_flight = 1;  // of all connections together
  double seconds = 1;
};

struct LoadResult {
  int64_t calls = 0;
  double seconds = 0;           // from the start to the last of these calls
  int64_t reply_bytes = 0;      // of one reply
  std::vector<double> latency;  // seconds, sorted
  double calls_per_second() const { return calls == 0 ? 0 : static_cast<double>(calls) / seconds; }
};

// Ends the process with a message where a call fails.
LoadResult RunLoad(const Load& load);

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_SERVICE_LOAD_H_
