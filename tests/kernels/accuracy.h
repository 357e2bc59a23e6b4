// Whether a kernel's answer is right: positions of NaN and Inf exactly, values within the contract's
// bounds.
#ifndef ATTEND_TESTS_KERNELS_ACCURACY_H_
#define ATTEND_TESTS_KERNELS_ACCURACY_H_

#include "kernels/attention.h"

namespace attend::test {

// Compares the outputs of the problem with the float64 reference.
//   out, fp32: maximum error below 2e-6 on unit-normal inputs, in proportion where scores or values are
//     larger (an error of a score is a relative error of its weight).
//   out, 16 bits: at most twice the error of the same mathematics done plainly in the type, plus 1e-5
//   (outputs
//     of fewer than 64 elements: or what rounding the weights and the output can make); and RMS
//     relative error below 2e-3 (fp16) or 1.5e-2 (bf16).
//   lse: 1e-5 (fp32) or 1e-3 (16 bits), in proportion to the scores.
//   weights: 2e-6 (fp32) or 1e-4, in proportion to the scores.
void ExpectAccurate(const Launch& launch, const Problem& problem);

// All problems of the launch.
void ExpectAccurate(const Launch& launch);

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_ACCURACY_H_
