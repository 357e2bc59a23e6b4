// Whether the BF16 dot product of AVX-512 (vdpbf16ps) pays on this processor, which kernels/cpu/bf16_dot.cc
// decides by rule: the first matrix product (8 keys by 48 lanes, 64 dimensions, all in the L1 cache) with it
// and with fp32 FMAs. Prints GFLOP/s of one thread's CPU time, medians of 9 interleaved rounds.
//
//   bf16_product
#include <algorithm>
#include <cstdio>

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <ctime>
#include <vector>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512bf16"), noinline))

namespace {

constexpr int kKeys = 8, kVectors = 3, kDims = 64, kLanes = 16 * kVectors;
alignas(64) float queries[kDims * kLanes];
alignas(64) float sums[kKeys * kLanes];
float keys[kKeys * kDims];  // as pairs of bf16, half of it

TARGET void Fp32() {
  __m512 acc[kKeys][kVectors];
  for (auto& row : acc)
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  for (int d = 0; d < kDims; ++d) {
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; ++i) {
      const __m512 key = _mm512_set1_ps(keys[i * kDims + d]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        acc[i][v] = _mm512_fmadd_ps(key, _mm512_load_ps(queries + d * kLanes + v * 16), acc[i][v]);
    }
  }
  for (int i = 0; i < kKeys; ++i)
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(sums + i * kLanes + v * 16, acc[i][v]);
}

TARGET void Bf16() {
  __m512 acc[kKeys][kVectors];
  for (auto& row : acc)
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  for (int d = 0; d < kDims / 2; ++d) {  // two dimensions to an instruction
#pragma GCC unroll 8
    for (int i = 0; i < kKeys; ++i) {
      const auto key = (__m512bh)_mm512_set1_ps(keys[i * kDims + d]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        acc[i][v] = _mm512_dpbf16_ps(acc[i][v], (__m512bh)_mm512_load_ps(queries + d * kLanes + v * 16), key);
    }
  }
  for (int i = 0; i < kKeys; ++i)
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(sums + i * kLanes + v * 16, acc[i][v]);
}

double Gflops(void (*block)()) {
  constexpr int kRepeats = 200'000;
  const std::clock_t start = std::clock();
  for (int i = 0; i < kRepeats; ++i) {
    block();
    asm volatile("" : : "r"(sums) : "memory");  // each result is wanted
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return 2.0 * kKeys * kLanes * kDims * kRepeats / seconds * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  if (!__builtin_cpu_supports("avx512bf16")) {
    std::puts("this processor has no AVX-512 BF16");
    return 0;
  }
  std::vector<double> fp32, bf16;
  for (int round = 0; round < 9; ++round) {
    fp32.push_back(Gflops(Fp32));
    bf16.push_back(Gflops(Bf16));
  }
  std::printf("fp32 FMA %.0f GFLOP/s, vdpbf16ps %.0f GFLOP/s, ratio %.2f\n", Median(fp32), Median(bf16),
              Median(bf16) / Median(fp32));
  return 0;
}

#else
int main() {
  std::puts("not an x86-64 processor");
  return 0;
}
#endif
