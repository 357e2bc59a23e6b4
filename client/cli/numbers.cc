#include "client/cli/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attend::cli {
namespace {

template <typename T>
T Load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Store(T value, void* data, int64_t index) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// By bits, in a few operations a number: inputs of a benchmark have tens of millions.
double HalfToDouble(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1f;
  const uint64_t fraction = bits & 0x3ff;
  if (exponent == 0x1f) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * static_cast<double>(fraction) * 0x1p-24;
  return sign * std::bit_cast<double>(static_cast<uint64_t>(exponent - 15 + 1023) << 52 | fraction << 42);
}

uint16_t DoubleToHalf(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::fabs(value) >= 65520) return sign | 0x7c00;  // halfway between the largest, 65504, and 2^16
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  // Bits of the fraction that go: more where the result is subnormal, a multiple of 2^-24.
  const int dropped = 42 + std::max(0, -14 - exponent);
  if (dropped > 53) return sign;  // nearer to 0 than to 2^-24
  const uint64_t fraction = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  uint64_t kept = fraction >> dropped;
  const uint64_t rest = fraction & ((uint64_t{1} << dropped) - 1);
  const uint64_t half = uint64_t{1} << (dropped - 1);
  if (rest > half || (rest == half && kept % 2 == 1)) ++kept;
  // The implicit bit of the fraction adds one to the exponent field; so does a fraction that rounds up to 2.
  const int field = ((std::max(exponent, -14) + 14) << 10) + static_cast<int>(kept);
  return static_cast<uint16_t>(sign | field);
}

uint16_t DoubleToBfloat(double value) {
  if (std::isnan(value)) return std::signbit(value) ? 0xffc0 : 0x7fc0;
  // Through fp32 with rounding to odd, so that the second rounding sees what the first one dropped.
  float single = static_cast<float>(value);
  if (static_cast<double>(single) != value && !std::isinf(single)) {
    auto bits = std::bit_cast<uint32_t>(single);
    if (std::fabs(static_cast<double>(single)) > std::fabs(value)) --bits;
    single = std::bit_cast<float>(bits | 1);
  }
  const auto bits = std::bit_cast<uint32_t>(single);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

double ToDouble(DataType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DataType::kFp32:
      return Load<float>(data, index);
    case DataType::kFp16:
      return HalfToDouble(Load<uint16_t>(data, index));
    case DataType::kBf16:
      return std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(data, index)) << 16);
    case DataType::kBool:
      return Load<uint8_t>(data, index);
  }
  return 0;
}

std::vector<double> ToDoubles(const TensorView& tensor) {
  std::vector<double> values(static_cast<size_t>(Elements(tensor.shape)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToDouble(tensor.dtype, tensor.data, static_cast<int64_t>(i));
  }
  return values;
}

void FromDouble(double value, DataType dtype, void* data, int64_t index) {
  switch (dtype) {
    case DataType::kFp32:
      return Store(static_cast<float>(value), data, index);
    case DataType::kFp16:
      return Store(DoubleToHalf(value), data, index);
    case DataType::kBf16:
      return Store(DoubleToBfloat(value), data, index);
    case DataType::kBool:
      return Store<uint8_t>(value != 0 ? 1 : 0, data, index);
  }
}

double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kFp16:
      return std::ldexp(1, -10);
    case DataType::kBf16:
      return std::ldexp(1, -7);
    default:
      return std::ldexp(1, -23);
  }
}

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

}  // namespace attend::cli
