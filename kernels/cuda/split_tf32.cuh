// True fp32 products on tensor cores: each operand is split into two tf32 parts of 11 bits, x = hi + lo, and
// a·b = hi·hi + (hi·lo + lo·hi); lo·lo lies below fp32's own rounding. Tensor cores round every
// accumulation toward zero, so long sums are cut: a few steps each into the two accumulators, which are
// then added to the running sum in ordinary fp32 (Ootomo and Yokota 2022, arXiv:2203.03341).
#ifndef ATTEND_KERNELS_CUDA_SPLIT_TF32_CUH_
#define ATTEND_KERNELS_CUDA_SPLIT_TF32_CUH_

#include <cstdint>

namespace attend::cuda {

struct Tf32Pair {
  uint32_t hi, lo;
};

// NaN and infinities give NaN in one of the parts: callers compute what is not finite again.
__device__ inline Tf32Pair SplitTf32(float x) {
  Tf32Pair pair;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(pair.hi) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(pair.lo) : "f"(x - __uint_as_float(pair.hi)));
  return pair;
}

// d (16x8) += a (16x8) * b (8x8). Thread (g, t) = (lane / 4, lane % 4) holds a[g][t], a[g+8][t], a[g][t+4],
// a[g+8][t+4]; b[t][g], b[t+4][g]; d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1].
__device__ inline void MmaTf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A 16x8 piece of a product of fp32 matrices.
struct Fp32Accumulator {
  float sum[4] = {};
  float main[4] = {};   // hi·hi of the steps since the last Fold
  float cross[4] = {};  // hi·lo + lo·hi

  __device__ void Mma(const uint32_t (&a_hi)[4], const uint32_t (&a_lo)[4], Tf32Pair b0, Tf32Pair b1) {
    MmaTf32(cross, a_lo, b0.hi, b1.hi);
    MmaTf32(cross, a_hi, b0.lo, b1.lo);
    MmaTf32(main, a_hi, b0.hi, b1.hi);
  }
  __device__ void Fold() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] += main[i] + cross[i];
      main[i] = 0.0f;
      cross[i] = 0.0f;
    }
  }
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_SPLIT_TF32_CUH_
