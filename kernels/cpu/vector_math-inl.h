// Vectors of fp32 and what softmax needs of them, for the instruction set being compiled.
#if defined(ATTEND_KERNELS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_VECTOR_MATH_INL_H_
#undef ATTEND_KERNELS_CPU_VECTOR_MATH_INL_H_
#else
#define ATTEND_KERNELS_CPU_VECTOR_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/cpu/plan.h"
#include "kernels/float16.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using Floats = hn::Vec<FloatTag>;
inline constexpr size_t kFloats = hn::MaxLanes(FloatTag());
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Register block of the matrix products: this many sums (each of a value dimension, of half a key, or of a
// key of bf16 in pairs) by up to three vectors of lanes, with room left for the operands.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kBlock = 8;  // 24 of 32 registers
#else
inline constexpr int kBlock = 4;  // 12 of 16
#endif
static_assert(kKeyPadding % kBlock == 0);

// 2^x, to about one unit in the last place; exactly 1 at 0; 0 below -126.5, at -inf too; NaN at NaN. x is
// at most 127. The polynomial is the minimax one of degree 6 on [-0.5, 0.5], relative error 2e-9.
HWY_INLINE HWY_ATTR Floats Exp2(Floats x) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  // Adding this rounds x to an integer n and leaves n + 127, the exponent's bits of 2^n, in the last bits.
  const Floats magic = hn::Set(df, 12582912.0f + 127.0f);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
  // x is the second operand, which x86's maximum returns when one is NaN.
  const Floats y = hn::Max(hn::Set(df, -127.0f), x);
#else
  const Floats y = hn::IfThenElse(hn::Lt(x, hn::Set(df, -127.0f)), hn::Set(df, -127.0f), x);
#endif
  const Floats shifted = hn::Add(y, magic);
  const Floats r = hn::Sub(y, hn::Sub(shifted, magic));
  const Floats power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  Floats p = hn::Set(df, 0.0001534581242594868f);
  p = hn::MulAdd(p, r, hn::Set(df, 0.0013399930903688073f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.009618489071726799f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.05550328642129898f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.24022646248340607f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.6931471824645996f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f));
  // A product, not an addition to the exponent: NaN stays NaN whatever its payload.
  return hn::Mul(p, power);
}

// m where it is a number to subtract; 0 where nothing was seen, so that -inf - 0 stays -inf.
HWY_INLINE HWY_ATTR Floats SafeMax(Floats m) {
  const FloatTag df;
  return hn::IfThenElse(hn::Eq(m, hn::Set(df, kMasked)), hn::Zero(df), m);
}

// tanh(x), odd polynomial near 0 and through 2^x elsewhere (the split and the rational approximation that
// Cephes' tanhf describes); absolute error about 1e-7.
HWY_INLINE HWY_ATTR Floats Tanh(Floats x) {
  const FloatTag df;
  const Floats a = hn::Abs(x);
  const Floats e = Exp2(hn::Mul(a, hn::Set(df, -2.0f * kLog2E)));
  const Floats one = hn::Set(df, 1.0f);
  const Floats far = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  const Floats z = hn::Mul(x, x);
  Floats p = hn::Set(df, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(df, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(df, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(df, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(df, -3.33332819422e-1f));
  const Floats near = hn::MulAdd(hn::Mul(p, z), x, x);
  return hn::IfThenElse(hn::Lt(a, hn::Set(df, 0.625f)), near, far);
}

// A row of dim elements (a multiple of 8) from element `at`, widened to fp32 and multiplied.
HWY_INLINE HWY_ATTR void LoadRow(DataType dtype, const void* data, int64_t at, int dim, float factor,
                                 float* to) {
  const hn::CappedTag<float, 8> d8;
  const auto f = hn::Set(d8, factor);
  const int step = static_cast<int>(hn::Lanes(d8));
  if (dtype == DataType::kFp32) {
    const float* from = static_cast<const float*>(data) + at;
    for (int i = 0; i < dim; i += step) hn::StoreU(hn::Mul(hn::LoadU(d8, from + i), f), d8, to + i);
  } else if (dtype == DataType::kBf16) {
    const hn::Rebind<uint16_t, decltype(d8)> d16;
    const hn::RebindToUnsigned<decltype(d8)> du;
    const uint16_t* from = static_cast<const uint16_t*>(data) + at;
    for (int i = 0; i < dim; i += step) {
      const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from + i)));
      hn::StoreU(hn::Mul(hn::BitCast(d8, bits), f), d8, to + i);
    }
  } else {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, decltype(d8)> d16;
    const hwy::float16_t* from = static_cast<const hwy::float16_t*>(data) + at;
    for (int i = 0; i < dim; i += step) {
      hn::StoreU(hn::Mul(hn::PromoteTo(d8, hn::LoadU(d16, from + i)), f), d8, to + i);
    }
#else  // where Highway emulates the conversion, it has no NaN and Inf
    const uint16_t* from = static_cast<const uint16_t*>(data) + at;
    for (int i = 0; i < dim; ++i) to[i] = FromFp16Bits(from[i]) * factor;
#endif
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
