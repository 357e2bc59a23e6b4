// Pass 1 of NAIVE and ONLINE: scores = q · k^T, modified, to device memory, in fp32.
//
// A block takes 128 query rows of a head and a strip of keys. q comes to shared memory once, k 64 keys at a
// time, the next 64 while these scores are modified and stored. Each of 8 warps multiplies 32 rows x 32 keys
// on tensor cores. fp32 goes its own way (fp32.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/naive/fp32.h"
#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/naive/plain.cuh"
#include "kernels/cuda/naive/tile.cuh"
#include "kernels/cuda/prepare_launch.h"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::naive {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 128;
constexpr int kKeys = 64;

// Bytes from one row to the next in shared memory: whole steps of 16 elements, padded to an odd number of
// 16-byte chunks.
constexpr int StrideBytes(int32_t head_dim) { return (head_dim + 15) / 16 * 32 + 16; }

// A block's work.
struct Strip {
  int32_t head, kv_head, head_dim;
  int64_t row0;
  float* scores;  // the head's
  bool plain;
  KeyBounds full;  // keys that every row sees, by causal mask and window
};

// Rows of 16-byte chunks to shared memory, zeros where they do not exist. row(i): the i-th, or null.
template <typename T, typename Row>
__device__ void LoadRows(unsigned char* shared, int rows, int32_t head_dim, bool aligned, const T* any,
                         const Row& row) {
  const int stride = StrideBytes(head_dim), chunks = stride / 16 - 1;
  for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
    const int line = i / chunks, d = i % chunks * 8;
    const T* from = d < head_dim ? row(line) : nullptr;
    CopyChunk(reinterpret_cast<T*>(shared + line * stride) + d, from == nullptr ? any : from + d,
              from != nullptr, aligned);
  }
  flash::CommitCopies();
}

template <typename T>
__device__ void Multiply(float (&s)[2][4][4], uint32_t q, uint32_t k, int32_t head_dim) {
  const int lane = threadIdx.x % 32, stride = StrideBytes(head_dim);
  const uint32_t q_lane = q + (lane & 15) * stride + (lane >> 4) * 16;
  const uint32_t k_lane = k + ((lane >> 4) * 8 + (lane & 7)) * stride + ((lane >> 3) & 1) * 16;
#pragma unroll 4
  for (int step = 0; step < stride / 32; ++step) {
    uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      flash::LoadMatrix(a[i], q_lane + i * 16 * stride + step * 32);
      flash::LoadMatrix(b[i], k_lane + i * 16 * stride + step * 32);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = i % 4;
      flash::Element<T>::Mma(s[i / 4][n], a[i / 4], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
}

// Modifies and stores a warp's 32 x 32 scores.
template <typename T>
__device__ void Store(const Problem& p, const Strip& strip, int64_t warp_row, int64_t warp_key,
                      const float (&s)[2][4][4]) {
  const int lane = threadIdx.x % 32;
  const int64_t stride = ScoreStride(p);
  const bool all_visible = strip.plain && warp_key >= strip.full.begin && warp_key + 32 <= strip.full.end;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = warp_row + r * 8 + lane / 4;
    if (row >= p.q_len) continue;
    float* to = strip.scores + row * stride;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = s[r / 2][i / 2][r % 2 * 2 + i % 2];
    const int64_t key = warp_key + lane % 4 * 2;  // and + 1, and 8 further each time
    if (all_visible) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= p.scale;
    } else if (strip.plain) {
      const KeyBounds bounds = BoundsOf(p, row, row + 1);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int64_t k = key + i / 2 * 8 + i % 2;
        x[i] = k >= bounds.begin && k < bounds.end ? x[i] * p.scale : NegativeInfinity();
      }
    } else {
      const RowScore<T> score(p, strip.head, row);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = ModifiedScore(score, key + i / 2 * 8 + i % 2, x[i]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (key + n * 8 >= stride) continue;
      *reinterpret_cast<float2*>(to + key + n * 8) = make_float2(x[2 * n], x[2 * n + 1]);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    ScoresKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t head_dim) {
  extern __shared__ __align__(16) unsigned char shared[];
  AllowNextLaunch();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t strip_keys = StripKeys(p);
  const Place place =
      PlaceOf(p, blockIdx.x - item.block_begin, kRows, (p.kv_len + strip_keys - 1) / strip_keys);
  Strip strip;
  strip.head = place.head;
  strip.kv_head = place.head / (p.q_heads / p.kv_heads);
  strip.head_dim = head_dim;
  strip.row0 = place.row_tile * kRows;
  strip.scores = m.scores + item.offset + place.head * p.q_len * ScoreStride(p);
  strip.plain = IsPlain(p);
  const int64_t row_end = min(strip.row0 + kRows, p.q_len);
  strip.full = {BoundsOf(p, row_end - 1, row_end).begin, BoundsOf(p, strip.row0, strip.row0 + 1).end};
  const KeyBounds bounds = BoundsOf(p, strip.row0, row_end);
  const int64_t begin = place.strip * strip_keys, end = min(begin + strip_keys, p.kv_len);

  const bool q_aligned = Aligned<T>(p.q, p.q_strides.token, p.q_strides.head);
  const bool k_aligned = Aligned<T>(p.k, p.k_strides.token | p.pages.k_page_stride, p.k_strides.head);
  const int stride = StrideBytes(head_dim);
  unsigned char* keys = shared + kRows * stride;
  auto load_keys = [&](int64_t key0) {
    LoadRows<T>(keys, kKeys, head_dim, k_aligned, static_cast<const T*>(p.k),
                [&](int i) { return key0 + i < p.kv_len ? KeyRow<T>(p, key0 + i, strip.kv_head) : nullptr; });
  };
  LoadRows<T>(shared, kRows, head_dim, q_aligned, static_cast<const T*>(p.q), [&](int i) {
    return strip.row0 + i < p.q_len ? QueryRow<T>(p, strip.row0 + i, strip.head) : nullptr;
  });
  load_keys(begin);
  const int warp_row = threadIdx.x / 64 * 32, warp_key = threadIdx.x / 32 % 2 * 32;
  const uint32_t q = flash::SharedAddress(shared) + warp_row * stride;
  const uint32_t k = flash::SharedAddress(keys) + warp_key * stride;
  for (int64_t key0 = begin; key0 < end; key0 += kKeys) {
    float s[2][4][4] = {};
    flash::WaitCopies<0>();
    __syncthreads();
    if (key0 < bounds.end && key0 + kKeys > bounds.begin) Multiply<T>(s, q, k, head_dim);
    __syncthreads();
    if (key0 + kKeys < end) load_keys(key0 + kKeys);
    Store<T>(p, strip, strip.row0 + warp_row, key0 + warp_key, s);
  }
}

template <typename T>
absl::Status LaunchScores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream) {
  const int bytes = (kRows + kKeys) * StrideBytes(launch.head_dim);
  bool early = false;  // of no use: the kernel does not wait for the one before it
  if (auto s = PrepareLaunch(reinterpret_cast<const void*>(ScoresKernel<T>), bytes, &early); !s.ok())
    return s;
  ScoresKernel<T><<<static_cast<unsigned>(work.blocks), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      work.list, m, launch.head_dim);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::Status EnqueueScores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream) {
  switch (launch.dtype) {
    case DataType::kFp16:
      return LaunchScores<__half>(launch, work, m, stream);
    case DataType::kBf16:
      return LaunchScores<__nv_bfloat16>(launch, work, m, stream);
    case DataType::kFp32:
      break;
  }
  switch (flash_fp32::PaddedDim(launch)) {
    case 64:
      return EnqueueFp32Scores<64>(launch, work, m, stream);
    case 128:
      return EnqueueFp32Scores<128>(launch, work, m, stream);
    default:
      return EnqueueFp32Scores<256>(launch, work, m, stream);
  }
}

}  // namespace attend::cuda::naive
