#include "kernels/cpu/bf16_dot.h"

namespace attend::cpu {
namespace {

#if defined(__x86_64__)
bool Has() { return __builtin_cpu_supports("avx512bf16") != 0; }

// Zen 4's takes as long as an FMA and does twice its work; Intel's takes four times as long: measured in
// kernels/README.md. No other of AMD's was measured.
bool Pays() { return __builtin_cpu_is("amd") != 0; }
#else
bool Has() { return false; }
bool Pays() { return false; }
#endif

bool& Choice() {
  static bool choice = Has() && Pays();
  return choice;
}

}  // namespace

bool UsesBf16Dot() { return Choice(); }

void SetBf16Dot(bool use) { Choice() = use && Has(); }

}  // namespace attend::cpu
