// The instruction sets that the vector code is compiled for. Include before any Highway header.
#ifndef ATTEND_KERNELS_CPU_TARGETS_H_
#define ATTEND_KERNELS_CPU_TARGETS_H_

// Three rungs are enough: SSE4, AVX2 and AVX-512 (AVX3), above the compiler's baseline. Of what the finer
// AVX-512 targets add only the BF16 dot product is used, by a function inside of AVX3 (bf16_scores-inl.h):
// older versions of Highway have no target for it, and not every processor that has it gains. Scalable
// vectors (SVE, RISC-V) cannot lie in arrays of registers.
// Highway expands this where all of its names are known; older versions lack two of them.
#define HWY_DISABLED_TARGETS                                                                         \
  (HWY_SSSE3 | HWY_AVX3_DL | ATTEND_AVX3_ZEN4 | ATTEND_AVX3_SPR | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128 | HWY_RVV)

// Bits 4 and 6 in the versions that have them, unused in those that do not.
#define ATTEND_AVX3_SPR (1LL << 4)
#define ATTEND_AVX3_ZEN4 (1LL << 6)

#include "hwy/detect_targets.h"

#ifdef HWY_AVX3_SPR
static_assert(ATTEND_AVX3_SPR == HWY_AVX3_SPR && ATTEND_AVX3_ZEN4 == HWY_AVX3_ZEN4);
#endif

#endif  // ATTEND_KERNELS_CPU_TARGETS_H_
