// A gRPC caller by hand, frame by frame (RFC 9113), for what no gRPC library does: stopping in the middle of
// a message, never reading a reply, dying.
#ifndef ATTEND_TESTS_SERVER_PROCESS_RAW_HTTP2_H_
#define ATTEND_TESTS_SERVER_PROCESS_RAW_HTTP2_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace attend::server {

// One connection with one call on stream 1.
class RawCaller {
 public:
  explicit RawCaller(int port);
  ~RawCaller();  // closes at once, without a word
  RawCaller(const RawCaller&) = delete;
  RawCaller& operator=(const RawCaller&) = delete;

  // Headers of a call of AttentionService.Attend, with these besides.
  void SendHeaders(const std::vector<std::pair<std::string, std::string>>& metadata = {});
  // The first `bytes` bytes of the length-prefixed message; all of it ends the stream. At most 60 KB: no
  // more than the initial flow-control window.
  void SendMessage(const std::string& message, size_t bytes);
  // Reads frames, without ever widening a window, until the stream ends or the connection does, or the
  // time is up. Gives the bytes of DATA received, or -1 where the time was up.
  int64_t ReadToEnd(int timeout_ms);

 private:
  void SendFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);
  bool ReadExactly(char* to, size_t size);

  int fd_ = -1;
};

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_PROCESS_RAW_HTTP2_H_
