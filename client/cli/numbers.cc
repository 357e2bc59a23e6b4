#include "client/cli/numbers.h"

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

double HalfToDouble(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  if (exponent == 0x1f) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 0x400, exponent - 25);
}

uint16_t DoubleToHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;  // halfway between the largest, 65504, and 2^16
  if (magnitude < std::ldexp(1, -14)) {
    // Subnormal: multiples of 2^-24. Rounding up to 0x400 gives the smallest normal number, as it should.
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  }
  int exponent = 0;
  const double mantissa = std::frexp(magnitude, &exponent);  // [0.5, 1)
  // The implicit bit of the fraction adds one to the exponent field; so does a fraction that rounds up to 2.
  const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(mantissa, 11)));
  return static_cast<uint16_t>(sign | (((exponent + 13) << 10) + fraction));
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
