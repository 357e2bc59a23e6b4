// Whether the first matrix product of bf16 goes through the BF16 dot product of AVX-512 (vdpbf16ps).
// Highway's targets do not tell: Debian 12's has none with these instructions.
#ifndef ATTEND_KERNELS_CPU_BF16_DOT_H_
#define ATTEND_KERNELS_CPU_BF16_DOT_H_

namespace attend::cpu {

// Decided by the processor, at the first call. Thread-safe once SetBf16Dot is no longer called.
bool UsesBf16Dot();

// For tests, before any kernel runs: uses it, where the processor has it, or not; InstructionSet() says
// which.
void SetBf16Dot(bool use);

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_BF16_DOT_H_
