// Bounds of a request that the decoder enforces; each is a flag of the server.
#ifndef ATTEND_SERVER_WIRE_LIMITS_H_
#define ATTEND_SERVER_WIRE_LIMITS_H_

#include <cstdint>
#include <limits>

namespace attend::server {

struct DecodeLimits {
  // Whole messages. protobuf reads no message of 2 GiB, so larger limits mean 2 GiB - 1.
  int64_t request_bytes_max = std::numeric_limits<int32_t>::max();
  int64_t response_bytes_max = std::numeric_limits<int32_t>::max();
  int64_t batch_max = 65536;  // sequences in a call
  int64_t heads_max = 65536;  // query heads; at most 2^31 - 1
  int64_t weight_rows_max = 65536;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_LIMITS_H_
