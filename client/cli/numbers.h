// Elements of tensors as numbers: fp32, fp16, bf16 and bool to double and back.
#ifndef ATTEND_CLIENT_CLI_NUMBERS_H_
#define ATTEND_CLIENT_CLI_NUMBERS_H_

#include <cstdint>
#include <vector>

#include "attend/types.h"

namespace attend::cli {

// Exact. NaN and infinities keep their kind.
double ToDouble(DataType dtype, const void* data, int64_t index);
// All elements of a tensor.
std::vector<double> ToDoubles(const TensorView& tensor);
// Rounds to nearest even; beyond the type's range to infinity. For kBool: not zero.
void FromDouble(double value, DataType dtype, void* data, int64_t index);

// Distance from 1 to the next number of the type: 2^-23, 2^-10, 2^-7.
double Epsilon(DataType dtype);
// Elements of a shape.
int64_t Elements(const Shape& shape);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_NUMBERS_H_
