#include "tests/server/process/raw_http2.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace attend::server {
namespace {

constexpr uint8_t kData = 0, kHeaders = 1, kRstStream = 3, kSettings = 4, kGoaway = 7;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

void AppendBigEndian(std::string* out, uint32_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// HPACK's literal without indexing, with a new name; lengths below 127.
void AppendHeader(std::string* out, const std::string& name, const std::string& value) {
  out->push_back(0);
  out->push_back(static_cast<char>(name.size()));
  out->append(name);
  out->push_back(static_cast<char>(value.size()));
  out->append(value);
}

}  // namespace

RawCaller::RawCaller(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return;
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  (void)!send(fd_, preface.data(), preface.size(), MSG_NOSIGNAL);
  SendFrame(kSettings, 0, 0, "");
}

RawCaller::~RawCaller() { close(fd_); }

void RawCaller::SendHeaders(const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::string block;
  AppendHeader(&block, ":method", "POST");
  AppendHeader(&block, ":scheme", "http");
  AppendHeader(&block, ":path", "/attend.v1.AttentionService/Attend");
  AppendHeader(&block, ":authority", "localhost");
  AppendHeader(&block, "te", "trailers");
  AppendHeader(&block, "content-type", "application/grpc");
  for (const auto& [name, value] : metadata) AppendHeader(&block, name, value);
  SendFrame(kHeaders, kEndHeaders, 1, block);
}

void RawCaller::SendMessage(const std::string& message, size_t bytes) {
  std::string framed(1, '\0');
  AppendBigEndian(&framed, static_cast<uint32_t>(message.size()), 4);
  framed += message;
  const bool whole = bytes >= message.size();
  framed.resize(std::min(framed.size(), bytes + 5));
  for (size_t at = 0; at < framed.size(); at += 16384) {
    const bool last = at + 16384 >= framed.size();
    SendFrame(kData, whole && last ? kEndStream : 0, 1, framed.substr(at, 16384));
  }
}

int64_t RawCaller::ReadToEnd(int timeout_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const timeval poll = {0, 50'000};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &poll, sizeof(poll));
  int64_t data = 0;
  while (std::chrono::steady_clock::now() < until) {
    unsigned char head[9];
    const ssize_t peeked = recv(fd_, head, sizeof(head), MSG_PEEK);
    if (peeked == 0) return data;  // closed
    if (peeked < static_cast<ssize_t>(sizeof(head))) continue;
    ReadExactly(reinterpret_cast<char*>(head), sizeof(head));
    const size_t size = static_cast<size_t>(head[0]) << 16 | static_cast<size_t>(head[1]) << 8 | head[2];
    std::string payload(size, '\0');
    if (!ReadExactly(payload.data(), size)) return data;
    const uint8_t type = head[3], flags = head[4];
    if (type == kSettings && (flags & kAck) == 0) SendFrame(kSettings, kAck, 0, "");
    if (type == kData) data += static_cast<int64_t>(size);
    const bool ends = (type == kData || type == kHeaders) && (flags & kEndStream) != 0;
    if (ends || type == kRstStream || type == kGoaway) return data;
  }
  return -1;
}

void RawCaller::SendFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  AppendBigEndian(&frame, static_cast<uint32_t>(payload.size()), 3);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  AppendBigEndian(&frame, stream, 4);
  frame += payload;
  (void)!send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL);
}

bool RawCaller::ReadExactly(char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = recv(fd_, to, size, 0);
    if (n == 0) return false;
    if (n < 0) continue;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace attend::server
