#include "server/process/request_id.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace attend::server {
namespace {

constexpr size_t kRequestIdMax = 128;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '0'; });
}

}  // namespace

bool IsRequestId(absl::string_view text) {
  return !text.empty() && text.size() <= kRequestIdMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool IsTraceparent(absl::string_view text) {
  if (text.size() != 55 || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const absl::string_view version = text.substr(0, 2), trace = text.substr(3, 32), span = text.substr(36, 16);
  return version == "00" && IsHex(trace) && IsHex(span) && IsHex(text.substr(53)) && !IsZero(trace) &&
         !IsZero(span);
}

std::string NewRequestId() {
  thread_local std::mt19937_64 random([] {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id(32, '0');
  for (size_t half = 0; half < 2; ++half) {
    uint64_t bits = random();
    for (size_t i = 0; i < 16; ++i, bits >>= 4) id[half * 16 + i] = kDigits[bits & 15];
  }
  return id;
}

}  // namespace attend::server
