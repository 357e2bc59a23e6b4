// Load on a server: a number of callers that each wait for their answer, or calls that arrive at random
// times whatever the server does. Latency counts from when a call was meant to be sent, so that a server
// which holds everybody up does not hide the time that callers then wait (coordinated omission).
#ifndef ATTEND_CLIENT_CLI_LOAD_H_
#define ATTEND_CLIENT_CLI_LOAD_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attend/client.h"

namespace attend::cli {

struct LoadOptions {
  int concurrency = 1;       // callers, where rate is 0
  double rate = 0;           // calls a second, Poisson arrivals
  double duration_s = 10;    // of sending, after the warm-up
  double warmup_s = 1;       // calls meant to be sent in it are not counted
  uint64_t seed = 1;         // of the arrivals
  int in_flight_max = 4096;  // with rate: what would be more is counted as not sent
};

struct LoadResult {
  double seconds = 0;                     // from the first counted sending to the last answer
  std::vector<double> latency_s;          // of calls that succeeded, sorted
  std::map<std::string, int64_t> errors;  // by status code
  std::string first_error;                // what came with the first of them, every violation included
  int64_t not_sent = 0;
  int64_t retried = 0;                            // calls that needed more than one attempt
  int64_t request_bytes = 0, response_bytes = 0;  // of one call
  int64_t flops = 0;                              // of one call
  std::string kernel, device;

  double Percentile(double p) const;  // of latency; p in [0, 100]; NaN where no call succeeded
};

// Sends the request again and again. Calls are made from one thread and answered on gRPC's.
LoadResult RunLoad(Client& client, const Request& request, const LoadOptions& options);

nlohmann::ordered_json ToJson(const LoadResult& result, const LoadOptions& options);
std::string ToText(const LoadResult& result);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_LOAD_H_
