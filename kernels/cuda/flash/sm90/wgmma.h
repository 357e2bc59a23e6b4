// wgmma: the warpgroup-wide matrix product of Hopper, D[64, n] += A[64, 16] · B[16, n], fp32 accumulators.
//
// A is in shared memory (descriptor) or in registers, B in shared memory. The accumulator of thread t of a
// warpgroup (warp w, lane l) holds d[4j + 0..1] = D[16w + l/4][8j + 2(l%4) + 0..1] and d[4j + 2..3] the same
// columns eight rows below; A in registers has the same shape (PTX ISA, "Asynchronous warpgroup level
// matrix multiply-accumulate"). The operand lists are literal because inline assembly needs them so.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_WGMMA_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_WGMMA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace attend::cuda::sm90 {

// Before the first product, and after ordinary code has touched registers that a product reads or writes.
__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of accumulators across a wait or a fence: it does not know that
// the registers change later than the instruction that names them.
template <int kCount>
__device__ inline void PinRegisters(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ inline void PinWeights(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// --- shared-memory matrix descriptors ---

// How rows of 128 or 64 bytes are permuted in shared memory, the same for the copy engine and for wgmma.
enum class Swizzle : uint32_t { k128 = 1, k64 = 2 };

// An operand in shared memory. Only the low word depends on the address; it is the same in all lanes, and the
// shuffle lets the compiler know, so that it advances in uniform registers between products.
// kLeading and kStride are byte offsets; their meaning depends on which dimension is contiguous:
// K-major: stride from one group of eight rows to the next; leading unused.
// MN-major: leading from one swizzle-wide block of columns to the next; stride from eight k to the next.
template <uint32_t kLeading, uint32_t kStride, Swizzle kSwizzle>
class Operand {
 public:
  __device__ explicit Operand(const void* shared) {
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    low_ = __shfl_sync(0xffffffffu, (address & 0x3FFFF) >> 4 | (kLeading & 0x3FFFF) >> 4 << 16, 0);
  }
  // The descriptor of what starts `bytes` later.
  __device__ uint64_t At(uint32_t bytes) const {
    return static_cast<uint64_t>(kHigh) << 32 | (low_ + (bytes >> 4));
  }

 private:
  static constexpr uint32_t kHigh = (kStride & 0x3FFFF) >> 4 | static_cast<uint32_t>(kSwizzle) << 30;
  uint32_t low_;
};

// --- operand lists ---

// clang-format off
#define ATTEND_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ATTEND_R1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define ATTEND_R2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define ATTEND_R3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_R4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define ATTEND_R5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define ATTEND_R6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define ATTEND_R7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define ATTEND_R8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define ATTEND_R9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define ATTEND_R10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define ATTEND_R11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define ATTEND_R12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define ATTEND_R13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define ATTEND_R14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define ATTEND_R15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define ATTEND_D8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                        "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ATTEND_REGISTERS_32 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3
#define ATTEND_OPERANDS_32(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24)
#define ATTEND_REGISTERS_40 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4
#define ATTEND_OPERANDS_40(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32)
#define ATTEND_REGISTERS_48 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5
#define ATTEND_OPERANDS_48(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40)
#define ATTEND_REGISTERS_56 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5 ", " ATTEND_R6
#define ATTEND_OPERANDS_56(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40), ATTEND_D8(d, 48)
#define ATTEND_REGISTERS_64 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5 ", " ATTEND_R6 ", " ATTEND_R7
#define ATTEND_OPERANDS_64(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40), ATTEND_D8(d, 48), ATTEND_D8(d, 56)
#define ATTEND_REGISTERS_80 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5 ", " ATTEND_R6 ", " ATTEND_R7 ", " ATTEND_R8 ", " ATTEND_R9
#define ATTEND_OPERANDS_80(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40), ATTEND_D8(d, 48), ATTEND_D8(d, 56), ATTEND_D8(d, 64), ATTEND_D8(d, 72)
#define ATTEND_REGISTERS_96 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5 ", " ATTEND_R6 ", " ATTEND_R7 ", " ATTEND_R8 ", " ATTEND_R9 ", " ATTEND_R10 ", " ATTEND_R11
#define ATTEND_OPERANDS_96(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40), ATTEND_D8(d, 48), ATTEND_D8(d, 56), ATTEND_D8(d, 64), ATTEND_D8(d, 72), ATTEND_D8(d, 80), ATTEND_D8(d, 88)
#define ATTEND_REGISTERS_128 ATTEND_R0 ", " ATTEND_R1 ", " ATTEND_R2 ", " ATTEND_R3 ", " ATTEND_R4 ", " ATTEND_R5 ", " ATTEND_R6 ", " ATTEND_R7 ", " ATTEND_R8 ", " ATTEND_R9 ", " ATTEND_R10 ", " ATTEND_R11 ", " ATTEND_R12 ", " ATTEND_R13 ", " ATTEND_R14 ", " ATTEND_R15
#define ATTEND_OPERANDS_128(d) ATTEND_D8(d, 0), ATTEND_D8(d, 8), ATTEND_D8(d, 16), ATTEND_D8(d, 24), ATTEND_D8(d, 32), ATTEND_D8(d, 40), ATTEND_D8(d, 48), ATTEND_D8(d, 56), ATTEND_D8(d, 64), ATTEND_D8(d, 72), ATTEND_D8(d, 80), ATTEND_D8(d, 88), ATTEND_D8(d, 96), ATTEND_D8(d, 104), ATTEND_D8(d, 112), ATTEND_D8(d, 120)
// One product: count registers of D, then the operands numbered after them.
#define ATTEND_WGMMA_SHARED(n, count, type, a, b, p, d, da, db, accumulate)                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" p ", 0;\n"                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {"                   \
               ATTEND_REGISTERS_##count "}, %" a ", %" b ", p, 1, 1, 0, 0; }"                         \
               : ATTEND_OPERANDS_##count(d) : "l"(da), "l"(db), "r"(accumulate))
#define ATTEND_WGMMA_REGISTER(n, count, type, a0, a1, a2, a3, b, p, d, ra, db, accumulate)           \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" p ", 0;\n"                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {"                   \
               ATTEND_REGISTERS_##count "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", p, 1, 1, 1; }" \
               : ATTEND_OPERANDS_##count(d)                                                          \
               : "r"((ra)[0]), "r"((ra)[1]), "r"((ra)[2]), "r"((ra)[3]), "l"(db), "r"(accumulate))
// clang-format on

// D += A · Bᵀ with A [64, 16] and B [n, 16] both K-major in shared memory: scores from q and k.
// accumulate = 0 overwrites D.
template <typename Element, int kN>
__device__ inline void WgmmaShared(float (&d)[kN / 2], uint64_t a, uint64_t b, int accumulate);

// D += A · B with A [64, 16] in registers and B [16, n] MN-major in shared memory: weights times v.
template <typename Element, int kN>
__device__ inline void WgmmaRegister(float (&d)[kN / 2], const uint32_t* a, uint64_t b, int accumulate);

#define ATTEND_DEFINE_WGMMA_SHARED(element, type, n, count, a, b, p)                         \
  template <>                                                                                \
  __device__ inline void WgmmaShared<element, n>(float(&d)[count], uint64_t da, uint64_t db, \
                                                 int accumulate) {                           \
    ATTEND_WGMMA_SHARED(n, count, type, a, b, p, d, da, db, accumulate);                     \
  }
#define ATTEND_DEFINE_WGMMA_REGISTER(element, type, n, count, a0, a1, a2, a3, b, p)                   \
  template <>                                                                                         \
  __device__ inline void WgmmaRegister<element, n>(float(&d)[count], const uint32_t* ra, uint64_t db, \
                                                   int accumulate) {                                  \
    ATTEND_WGMMA_REGISTER(n, count, type, a0, a1, a2, a3, b, p, d, ra, db, accumulate);               \
  }

// Widths of key tiles.
#define ATTEND_DEFINE_SHARED_64(element, type) \
  ATTEND_DEFINE_WGMMA_SHARED(element, type, 64, 32, "32", "33", "34")
#define ATTEND_DEFINE_SHARED_80(element, type) \
  ATTEND_DEFINE_WGMMA_SHARED(element, type, 80, 40, "40", "41", "42")
#define ATTEND_DEFINE_SHARED_112(element, type) \
  ATTEND_DEFINE_WGMMA_SHARED(element, type, 112, 56, "56", "57", "58")
#define ATTEND_DEFINE_SHARED_128(element, type) \
  ATTEND_DEFINE_WGMMA_SHARED(element, type, 128, 64, "64", "65", "66")
#define ATTEND_DEFINE_SHARED_160(element, type) \
  ATTEND_DEFINE_WGMMA_SHARED(element, type, 160, 80, "80", "81", "82")
// Widths of v.
#define ATTEND_DEFINE_REGISTER_64(element, type) \
  ATTEND_DEFINE_WGMMA_REGISTER(element, type, 64, 32, "32", "33", "34", "35", "36", "37")
#define ATTEND_DEFINE_REGISTER_96(element, type) \
  ATTEND_DEFINE_WGMMA_REGISTER(element, type, 96, 48, "48", "49", "50", "51", "52", "53")
#define ATTEND_DEFINE_REGISTER_128(element, type) \
  ATTEND_DEFINE_WGMMA_REGISTER(element, type, 128, 64, "64", "65", "66", "67", "68", "69")
#define ATTEND_DEFINE_REGISTER_192(element, type) \
  ATTEND_DEFINE_WGMMA_REGISTER(element, type, 192, 96, "96", "97", "98", "99", "100", "101")
#define ATTEND_DEFINE_REGISTER_256(element, type) \
  ATTEND_DEFINE_WGMMA_REGISTER(element, type, 256, 128, "128", "129", "130", "131", "132", "133")

ATTEND_DEFINE_SHARED_64(__nv_bfloat16, "bf16")
ATTEND_DEFINE_SHARED_80(__nv_bfloat16, "bf16")
ATTEND_DEFINE_SHARED_112(__nv_bfloat16, "bf16")
ATTEND_DEFINE_SHARED_128(__nv_bfloat16, "bf16")
ATTEND_DEFINE_SHARED_160(__nv_bfloat16, "bf16")
ATTEND_DEFINE_REGISTER_64(__nv_bfloat16, "bf16")
ATTEND_DEFINE_REGISTER_96(__nv_bfloat16, "bf16")
ATTEND_DEFINE_REGISTER_128(__nv_bfloat16, "bf16")
ATTEND_DEFINE_REGISTER_192(__nv_bfloat16, "bf16")
ATTEND_DEFINE_REGISTER_256(__nv_bfloat16, "bf16")
ATTEND_DEFINE_SHARED_64(__half, "f16")
ATTEND_DEFINE_SHARED_80(__half, "f16")
ATTEND_DEFINE_SHARED_112(__half, "f16")
ATTEND_DEFINE_SHARED_128(__half, "f16")
ATTEND_DEFINE_SHARED_160(__half, "f16")
ATTEND_DEFINE_REGISTER_64(__half, "f16")
ATTEND_DEFINE_REGISTER_96(__half, "f16")
ATTEND_DEFINE_REGISTER_128(__half, "f16")
ATTEND_DEFINE_REGISTER_192(__half, "f16")
ATTEND_DEFINE_REGISTER_256(__half, "f16")

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_WGMMA_H_
