// fp16 and bf16 as bits, one value at a time: round to nearest, ties to even. The vector code has its own.
#ifndef ATTEND_KERNELS_FLOAT16_H_
#define ATTEND_KERNELS_FLOAT16_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace attend {

inline uint16_t ToBf16Bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float FromBf16Bits(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t ToFp16Bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the subnormal in the last bits, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

inline float FromFp16Bits(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = (x >> 10) & 31;
  const uint32_t fraction = x & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
  if (exponent == 0) {
    const float a = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -a : a;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

}  // namespace attend

#endif  // ATTEND_KERNELS_FLOAT16_H_
