// Requests as each server of the benchmark takes them.
#ifndef ATTEND_TESTS_BENCH_SERVICE_REQUESTS_H_
#define ATTEND_TESTS_BENCH_SERVICE_REQUESTS_H_

#include <cstdint>
#include <string>

namespace attend::bench {

// fp16 self-attention, causal: q, k and v [batch, heads, length, head_dim].
struct AttentionShape {
  int64_t batch = 1, heads = 1, length = 1, head_dim = 64;
};

// A serialised AttendRequest. Elements are random, of magnitudes from 0.25 to 2.
std::string AttendMessage(const AttentionShape& shape);
// The same q, k and v as today_service.py takes them: four int32 of shape, then the elements.
std::string TodayMessage(const AttentionShape& shape);
// An AttendRequest of about these bytes, nearly all of them q, so that the reply is about as large. Wide
// heads and few tokens, as an LLM's layer has.
std::string TransportMessage(int64_t bytes);

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_SERVICE_REQUESTS_H_
