// fp16 and bf16 on the host, in plain integer arithmetic: round to nearest, ties to even.
#ifndef ATTEND_TESTS_KERNELS_HOST_FLOAT_H_
#define ATTEND_TESTS_KERNELS_HOST_FLOAT_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/attention.h"

namespace attend::test {

inline uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t ToFp16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return sign | 0x7e00;
  const float a = std::fabs(x);
  if (a >= 65520.0f) return sign | 0x7c00;  // rounds to infinity
  // Units in the last place of fp16 at this size: 2^(e - 10), and 2^-24 from 2^-14 down. Dividing by a power
  // of two is exact, and nearbyint rounds to even.
  const int e = std::max(static_cast<int>(std::bit_cast<uint32_t>(a) >> 23) - 127, -14);
  const float ulps = a * std::bit_cast<float>(static_cast<uint32_t>(127 + 10 - e) << 23);
  // A subnormal is its count of units; a normal has 2^10 more for each step of the exponent.
  return sign | static_cast<uint16_t>(static_cast<int>(std::nearbyint(ulps)) + ((e + 14) << 10));
}

inline float FromFp16(uint16_t x) {
  const int exponent = (x >> 10) & 31;
  const int fraction = x & 1023;
  float a = 0;
  if (exponent == 31) {
    a = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    a = static_cast<float>(fraction) * 0x1p-24f;
  } else {
    a = static_cast<float>(fraction + 1024) * std::bit_cast<float>((exponent - 25 + 127) << 23);
  }
  return (x & 0x8000) != 0 ? -a : a;
}

// The element at this index.
inline float Load(const void* data, DataType dtype, int64_t index) {
  if (dtype == DataType::kFp32) return static_cast<const float*>(data)[index];
  const uint16_t x = static_cast<const uint16_t*>(data)[index];
  return dtype == DataType::kFp16 ? FromFp16(x) : FromBf16(x);
}

inline void Store(void* data, DataType dtype, int64_t index, float x) {
  if (dtype == DataType::kFp32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<uint16_t*>(data)[index] = dtype == DataType::kFp16 ? ToFp16(x) : ToBf16(x);
  }
}

// x as the type can hold it.
inline float RoundTo(DataType dtype, float x) {
  if (dtype == DataType::kFp32) return x;
  return dtype == DataType::kFp16 ? FromFp16(ToFp16(x)) : FromBf16(ToBf16(x));
}

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_HOST_FLOAT_H_
