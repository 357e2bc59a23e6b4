// What a problem does to a score between q·k and softmax, and which keys a row may see: one meaning for all
// kernels. Kernels with a hot loop specialise it; their exact paths and the simple kernels call it.
#ifndef ATTEND_KERNELS_CUDA_SCORE_CUH_
#define ATTEND_KERNELS_CUDA_SCORE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attention.h"

namespace attend::cuda {

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

__device__ inline float NegativeInfinity() { return __int_as_float(0xff800000); }

// See kBiasMax. Infinities and NaN stay what they are.
__device__ inline float BoundedBias(float x) {
  return isfinite(x) ? fminf(fmaxf(x, -kBiasMax), kBiasMax) : x;
}

// tokens is a power of two.
__device__ inline int PageShift(const Problem& p) { return 31 - __clz(p.pages.tokens); }

// Where a token's row of one head begins, through the page table where there is one.
template <typename T>
__device__ inline const T* KeyRow(const Problem& p, int64_t key, int32_t kv_head) {
  const T* base = static_cast<const T*>(p.k) + kv_head * p.k_strides.head;
  if (p.pages.table == nullptr) return base + key * p.k_strides.token;
  return base + p.pages.table[key >> PageShift(p)] * p.pages.k_page_stride +
         (key & (p.pages.tokens - 1)) * p.k_strides.token;
}
template <typename T>
__device__ inline const T* ValueRow(const Problem& p, int64_t key, int32_t kv_head) {
  const T* base = static_cast<const T*>(p.v) + kv_head * p.v_strides.head;
  if (p.pages.table == nullptr) return base + key * p.v_strides.token;
  return base + p.pages.table[key >> PageShift(p)] * p.pages.v_page_stride +
         (key & (p.pages.tokens - 1)) * p.v_strides.token;
}
template <typename T>
__device__ inline const T* QueryRow(const Problem& p, int64_t row, int32_t head) {
  return static_cast<const T*>(p.q) + row * p.q_strides.token + head * p.q_strides.head;
}

// attend::VisibleKeys on the device: the keys that causal mask and window leave to rows
// [row_begin, row_end), as [begin, end); begin == end where there are none. Windows may be near 2^63.
struct KeyBounds {
  int64_t begin;
  int64_t end;
};
__host__ __device__ inline KeyBounds BoundsOf(const Problem& p, int64_t row_begin, int64_t row_end) {
  const int64_t shift = p.causal == Causal::kTopLeft ? 0 : p.kv_len - p.q_len;
  int64_t begin = 0, end = p.kv_len;
  if (p.window_left != kUnbounded && row_begin + shift > p.window_left) {
    begin = row_begin + shift - p.window_left;
  }
  const int64_t right = p.causal != Causal::kNone ? 0 : p.window_right;
  if (right != kUnbounded) {
    const int64_t diagonal = row_end - 1 + shift;
    if (diagonal < p.kv_len - 1 && right < p.kv_len - 1 - diagonal) {
      end = diagonal + right + 1 > 0 ? diagonal + right + 1 : 0;
    }
  }
  if (begin > p.kv_len) begin = p.kv_len;
  if (end < begin) end = begin;
  return {begin, end};
}

// Whether a problem's scores are only scaled, and masked by bounds.
__device__ inline bool IsPlain(const Problem& p) {
  return p.mask == nullptr && p.bias == nullptr && p.alibi_slopes == nullptr && p.softcap == 0;
}

// One query row's view of the score modifiers. T: the launch's dtype, that a bias may have.
template <typename T>
struct RowScore {
  KeyBounds bounds;
  const uint8_t* mask;         // this row's, or null
  const char* bias;            // this row's, or null
  int64_t mask_key, bias_key;  // strides
  bool bias_is_fp32;
  float scale, softcap, softcap_inverse, slope;
  int64_t alibi_origin;  // the key at distance 0
  bool plain;            // bounds and scale are all there is

  __device__ RowScore(const Problem& p, int32_t head, int64_t row) {
    bounds = BoundsOf(p, row, row + 1);
    mask = p.mask == nullptr ? nullptr : p.mask + head * p.mask_strides.head + row * p.mask_strides.row;
    const int64_t bias_element = head * p.bias_strides.head + row * p.bias_strides.row;
    bias_is_fp32 = p.bias_is_fp32;
    bias = p.bias == nullptr ? nullptr
                             : static_cast<const char*>(p.bias) +
                                   bias_element * (p.bias_is_fp32 ? int64_t{4} : int64_t{sizeof(T)});
    mask_key = p.mask_strides.key;
    bias_key = p.bias_strides.key;
    scale = p.scale;
    softcap = p.softcap;
    softcap_inverse = p.softcap > 0 ? 1.0f / p.softcap : 0.0f;
    slope = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[head];
    alibi_origin = row + p.kv_len - p.q_len;
    plain = IsPlain(p);
  }

  __device__ float Bias(int64_t key) const {
    return BoundedBias(bias_is_fp32 ? reinterpret_cast<const float*>(bias)[key * bias_key]
                                    : ToFloat(reinterpret_cast<const T*>(bias)[key * bias_key]));
  }

  // Whether the row may see the key; what it may not see must not be read into a sum, not even times 0.
  __device__ bool Visible(int64_t key) const {
    if (key < bounds.begin || key >= bounds.end) return false;
    if (mask != nullptr && mask[key * mask_key] == 0) return false;
    return bias == nullptr || Bias(key) != NegativeInfinity();
  }

  // The score of a visible key from its q·k.
  __device__ float Modify(int64_t key, float qk) const {
    float s = scale * qk;
    if (softcap > 0) s = softcap * tanhf(s * softcap_inverse);
    if (bias != nullptr) s += Bias(key);
    if (slope != 0) {
      const int64_t distance = alibi_origin - key;
      s -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
    return s;
  }

  // The score as kernels keep it: -inf where the row may not see the key.
  __device__ float operator()(int64_t key, float qk) const {
    return Visible(key) ? Modify(key, qk) : NegativeInfinity();
  }
};

// The same, not inlined: for kernels in which modifiers are not the common case, at every element of an
// unrolled tile.
template <typename T>
__device__ __noinline__ float ModifiedScore(const RowScore<T>& score, int64_t key, float qk) {
  return score(key, qk);
}

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_SCORE_CUH_
