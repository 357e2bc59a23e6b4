// The last pass of NAIVE and ONLINE: out = weights · v.
//
// A block owns 64 query rows of a head, a warp 16 of them with all columns of v, so that each weight is
// read from device memory once, straight into the registers that multiply it; the next 64 keys' weights and
// values travel meanwhile. ONLINE's weights are formed from the scores as they are read: exp(s - max) / sum.
// Weights are split into two parts of the dtype, so that their rounding is fp32's. fp32 goes its own way
// (fp32.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/naive/fp32.h"
#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/naive/plain.cuh"
#include "kernels/cuda/naive/tile.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::naive {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kKeys = 64;
// Weights are scaled up before they become fp16, whose smallest numbers are coarse.
constexpr float kWeightScale = 16384.0f;

// A tile of v in shared memory, rows padded to an odd number of 16-byte chunks.
template <int kDim>
struct Values {
  static constexpr int kStride = kDim + 8;  // elements
  static constexpr int kBytes = kKeys * kStride * 2;
};

template <typename T, int kDim>
__device__ void LoadValues(const Problem& p, int32_t kv_head, int64_t key0, int32_t v_head_dim, bool aligned,
                           T* to) {
  for (int i = threadIdx.x; i < kKeys * (kDim / 8); i += kThreads) {
    const int key = i / (kDim / 8), column = i % (kDim / 8) * 8;
    const bool valid = key0 + key < p.kv_len && column < v_head_dim;
    const T* from = valid ? ValueRow<T>(p, key0 + key, kv_head) + column : static_cast<const T*>(p.v);
    CopyChunk(to + key * Values<kDim>::kStride + column, from, valid, aligned);
  }
}

// The rows g and g + 8 of a thread.
struct Rows {
  RowWeight weight[2];
  const float* scores[2];  // null where the row does not exist
  float* all_weights[2];   // null where not wanted
  int64_t stride, kv_len;
};

// Weights of 64 keys: [group of 8 keys][row g: two, row g + 8: two].
using WeightTile = float[kKeys / 8][4];

__device__ void LoadTile(const Rows& rows, int64_t key0, WeightTile& w) {
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const int column = i / 2 * 8 + threadIdx.x % 4 * 2;
    const float* scores = rows.scores[i % 2];
    float2 two = make_float2(NegativeInfinity(), NegativeInfinity());
    if (scores != nullptr && key0 + column < rows.stride) {
      two = __ldcs(reinterpret_cast<const float2*>(scores + key0 + column));
    } else if (!rows.weight[0].form) {
      two = make_float2(0.0f, 0.0f);
    }
    w[i / 2][i % 2 * 2] = two.x;
    w[i / 2][i % 2 * 2 + 1] = two.y;
  }
}

__device__ void FormTile(const Rows& rows, int64_t key0, WeightTile& w) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    float& x = w[i / 4][i % 4];
    x = rows.weight[i / 2 % 2](x);
    const int64_t key = key0 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    float* to = rows.all_weights[i / 2 % 2];
    if (to != nullptr && key < rows.kv_len) to[key] = x;
  }
}

template <typename T>
struct Parts {
  uint32_t hi, lo;
  __device__ Parts(float x, float y) {
    x *= kWeightScale;
    y *= kWeightScale;
    const T x_hi = FromFloat<T>(x), y_hi = FromFloat<T>(y);
    hi = flash::Element<T>::Pack(x, y);
    lo = flash::Element<T>::Pack(x - ToFloat(x_hi), y - ToFloat(y_hi));
  }
};

template <typename T, int kDim>
__device__ void Multiply(const WeightTile& w, uint32_t v, int32_t v_head_dim, float (&out)[kDim / 8][4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t v_lane = v + ((lane & 15) * Values<kDim>::kStride + (lane >> 4) * 8) * 2;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&two)[4] = w[step * 2 + i / 2];
      const Parts<T> parts(two[i % 2 * 2], two[i % 2 * 2 + 1]);
      hi[i] = parts.hi;
      lo[i] = parts.lo;
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      if (kDim > 64 && n * 16 >= v_head_dim) break;
      uint32_t b[4];
      flash::LoadMatrixTransposed(b, v_lane + (step * 16 * Values<kDim>::kStride + n * 16) * 2);
      flash::Element<T>::Mma(out[2 * n], lo, b[0], b[1]);
      flash::Element<T>::Mma(out[2 * n + 1], lo, b[2], b[3]);
      flash::Element<T>::Mma(out[2 * n], hi, b[0], b[1]);
      flash::Element<T>::Mma(out[2 * n + 1], hi, b[2], b[3]);
    }
  }
}

// A thread's two rows. all_weights: all weights are wanted.
__device__ Rows RowsOf(const ProblemItem& item, const Matrices& m, int32_t head, int64_t thread_row,
                       bool form_weights, bool all_weights) {
  const Problem& p = item.problem;
  Rows rows;
  rows.stride = ScoreStride(p);
  rows.kv_len = p.kv_len;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = thread_row + half * 8, index = head * p.q_len + row;
    const bool exists = row < p.q_len;
    rows.weight[half].form = form_weights;
    if (exists) rows.weight[half] = RowWeight(m, item.row_offset + index, form_weights);
    rows.scores[half] = exists ? m.scores + item.offset + index * rows.stride : nullptr;
    rows.all_weights[half] = exists && all_weights
                                 ? p.weights + head * p.weights_head_stride + row * p.weights_row_stride
                                 : nullptr;
  }
  return rows;
}

// Writes a thread's part of out; what did not come out finite is summed again.
template <typename T, int kDim>
__device__ void StoreOutput(const Problem& p, int32_t head, int64_t thread_row, int32_t v_head_dim,
                            bool out_is_fp32, const Rows& rows, const float (&out)[kDim / 8][4]) {
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) {
    const int half = i / 2 % 2, column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const int64_t row = thread_row + half * 8;
    if (row >= p.q_len || column >= v_head_dim) continue;
    float x = out[i / 4][i % 4] * (1.0f / kWeightScale);
    if (!isfinite(x)) x = PlainSum<T>(p, head, row, column, rows.scores[half], rows.weight[half]);
    const int64_t offset = row * p.out_strides.token + head * p.out_strides.head + column;
    if (out_is_fp32) {
      static_cast<float*>(p.out)[offset] = x;
    } else {
      static_cast<T*>(p.out)[offset] = FromFloat<T>(x);
    }
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 64 ? 3 : 2)
    WeightedSumKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t v_head_dim,
                      bool form_weights, bool out_is_fp32) {
  extern __shared__ __align__(16) unsigned char shared[];  // two tiles of v
  AllowNextLaunch();
  WaitForLaunchBefore();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const Place place = PlaceOf(p, blockIdx.x - item.block_begin, kRows, 1);
  const int32_t head = place.head, kv_head = head / (p.q_heads / p.kv_heads);
  const int64_t row0 = place.row_tile * kRows;
  const int64_t thread_row = row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const bool all_weights = form_weights && p.weights != nullptr && p.weight_rows == nullptr;
  const Rows rows = RowsOf(item, m, head, thread_row, form_weights, all_weights);

  // Keys that no row of the block sees have weights of 0, which matter only where they must be written.
  KeyBounds bounds = BoundsOf(p, row0, min(row0 + kRows, p.q_len));
  if (all_weights) bounds = {0, p.kv_len};
  const bool aligned = Aligned<T>(p.v, p.v_strides.token | p.pages.v_page_stride, p.v_strides.head);
  const int64_t begin = bounds.begin / kKeys * kKeys;
  float out[kDim / 8][4] = {};
  WeightTile next;
  if (begin < bounds.end) {
    LoadValues<T, kDim>(p, kv_head, begin, v_head_dim, aligned, reinterpret_cast<T*>(shared));
    LoadTile(rows, begin, next);
  }
  flash::CommitCopies();
  int stage = 0;
  for (int64_t key0 = begin; key0 < bounds.end; key0 += kKeys, stage ^= 1) {
    WeightTile w;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) w[i / 4][i % 4] = next[i / 4][i % 4];
    flash::WaitCopies<0>();
    __syncthreads();  // this tile is there, and nobody reads the last one any more
    if (key0 + kKeys < bounds.end) {
      T* to = reinterpret_cast<T*>(shared + (stage ^ 1) * Values<kDim>::kBytes);
      LoadValues<T, kDim>(p, kv_head, key0 + kKeys, v_head_dim, aligned, to);
      LoadTile(rows, key0 + kKeys, next);
    }
    flash::CommitCopies();
    if (form_weights) FormTile(rows, key0, w);
    Multiply<T, kDim>(w, flash::SharedAddress(shared + stage * Values<kDim>::kBytes), v_head_dim, out);
  }
  StoreOutput<T, kDim>(p, head, thread_row, v_head_dim, out_is_fp32, rows, out);
}

template <typename T, int kDim>
absl::Status LaunchKernel(const Launch& launch, bool form_weights, const WorkList& work, const Matrices& m,
                          Stream stream) {
  constexpr int kBytes = 2 * Values<kDim>::kBytes;
  return LaunchEarly(WeightedSumKernel<T, kDim>, work.blocks, kThreads, kBytes, stream, work.list, m,
                     launch.v_head_dim, form_weights, launch.partial);
}

template <typename T>
absl::Status LaunchFor(const Launch& launch, bool form_weights, const WorkList& work, const Matrices& m,
                       Stream stream) {
  if (launch.v_head_dim <= 64) return LaunchKernel<T, 64>(launch, form_weights, work, m, stream);
  if (launch.v_head_dim <= 128) return LaunchKernel<T, 128>(launch, form_weights, work, m, stream);
  return LaunchKernel<T, 256>(launch, form_weights, work, m, stream);
}

}  // namespace

absl::Status EnqueueWeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                const Matrices& m, Stream stream) {
  switch (launch.dtype) {
    case DataType::kFp16:
      return LaunchFor<__half>(launch, form_weights, work, m, stream);
    case DataType::kBf16:
      return LaunchFor<__nv_bfloat16>(launch, form_weights, work, m, stream);
    case DataType::kFp32:
      break;
  }
  switch (flash_fp32::PaddedDim(launch)) {
    case 64:
      return EnqueueFp32WeightedSum<64>(launch, form_weights, work, m, stream);
    case 128:
      return EnqueueFp32WeightedSum<128>(launch, form_weights, work, m, stream);
    default:
      return EnqueueFp32WeightedSum<256>(launch, form_weights, work, m, stream);
  }
}

}  // namespace attend::cuda::naive
