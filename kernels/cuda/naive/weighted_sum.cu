// The last pass of NAIVE and ONLINE: out = weights · v.
//
// A block owns 128 query rows (64 or 32 where v is wide) with all columns of v, so that the weights are read
// from device memory once. 32 keys at a time come to shared memory, the next 32 on their way meanwhile;
// each warp multiplies 16 rows x 64 columns on tensor cores. ONLINE's weights are formed from the scores as
// they are read: exp(s - max) / sum.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/naive/tile.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/split_tf32.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::naive {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 32;  // in a stage
constexpr int kStages = 2;

template <typename T, int kWarpsAcross>
struct Shape {
  static constexpr int kRows = 16 * 8 / kWarpsAcross;
  static constexpr int kColumns = 64 * kWarpsAcross;
  // Row strides in shared memory, in elements: no two of the addresses that a warp reads at a time share a
  // bank, however it reads them (ldmatrix, pairs, or single words down a column).
  static constexpr int kWeightStride = sizeof(T) == 4 ? kKeys + 4 : kKeys + 8;
  static constexpr int kValueStride = kColumns + 8;
  static constexpr int kWeightBytes = kRows * kWeightStride * 4;
  static constexpr int kStageBytes = kWeightBytes + kKeys * kValueStride * static_cast<int>(sizeof(T));
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// What a weight is made of, for one row: the weight itself, or (ONLINE) its score.
struct RowWeight {
  float max = 0.0f, inverse_sum = 0.0f;
  bool form = false;

  __device__ RowWeight() = default;
  __device__ RowWeight(const Matrices& m, int64_t index, bool form_weights) : form(form_weights) {
    if (!form) return;
    const float row_max = m.row_max[index], row_sum = m.row_sum[index];
    max = row_max == NegativeInfinity() ? 0.0f : row_max;
    inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
  }
  __device__ float operator()(float x) const {
    if (!form) return x;
    const float e = expf(x - max);
    return e == 0.0f ? 0.0f : e * inverse_sum;
  }
};

// A block's rows of one head.
struct Slab {
  int32_t head, kv_head;
  int64_t row0;
  const float* scores;  // row0's
  float* weights;       // row0's, or null
};

template <typename T, typename S>
__device__ void LoadStage(const Problem& p, const Slab& slab, int64_t key0, int32_t v_head_dim,
                          bool v_aligned, unsigned char* stage) {
  float* weights = reinterpret_cast<float*>(stage);
  for (int i = threadIdx.x; i < S::kRows * (kKeys / 4); i += kThreads) {
    const int row = i / (kKeys / 4), key = i % (kKeys / 4) * 4;
    const bool valid = slab.row0 + row < p.q_len && key0 + key < ScoreStride(p);
    const float* from = valid ? slab.scores + row * ScoreStride(p) + key0 + key : slab.scores;
    CopyChunk(weights + row * S::kWeightStride + key, from, valid, true);
  }
  T* values = reinterpret_cast<T*>(stage + S::kWeightBytes);
  constexpr int kPerCopy = 16 / sizeof(T);
  constexpr int kCopies = S::kColumns / kPerCopy;
  for (int i = threadIdx.x; i < kKeys * kCopies; i += kThreads) {
    const int key = i / kCopies, column = i % kCopies * kPerCopy;
    const bool valid = key0 + key < p.kv_len && column < v_head_dim;
    const T* from = valid ? ValueRow<T>(p, key0 + key, slab.kv_head) + column : static_cast<const T*>(p.v);
    CopyChunk(values + key * S::kValueStride + column, from, valid, v_aligned);
  }
  flash::CommitCopies();
}

// The thread's weights of rows g and g + 8 at a key, where they are wanted.
template <typename S>
struct WeightSource {
  const float* tile;  // the warp's 16 rows
  RowWeight of[2];
  float* out[2];  // where to write weights at key0, or null
  int keys;       // that exist from key0 on

  __device__ float operator()(int half, int key) const {
    const int g = threadIdx.x % 32 / 4;
    const float w = of[half](tile[(g + half * 8) * S::kWeightStride + key]);
    if (out[half] != nullptr && key < keys) out[half][key] = w;
    return w;
  }
};

template <typename T, typename S>
struct Multiplier {
  float sum[8][4] = {};
  __device__ void Add(const WeightSource<S>& weight, const T* values) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    const uint32_t v =
        flash::SharedAddress(values + ((lane & 7) + (lane & 8)) * S::kValueStride + (lane >> 4) * 8);
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = key + i / 2 * 8 + 2 * t;
        const float low = weight(i % 2, k), high = weight(i % 2, k + 1);
        a[i] = flash::Element<T>::Pack(low, high);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t b[4];
        flash::LoadMatrixTransposed(b, v + (key * S::kValueStride + j * 16) * static_cast<int>(sizeof(T)));
        flash::Element<T>::Mma(sum[2 * j], a, b[0], b[1]);
        flash::Element<T>::Mma(sum[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ float Get(int j, int i) const { return sum[j][i]; }
};

template <typename S>
struct Multiplier<float, S> {
  Fp32Accumulator acc[8];
  __device__ void Add(const WeightSource<S>& weight, const float* values) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int key = 0; key < kKeys; key += 8) {
      uint32_t hi[4], lo[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Tf32Pair pair = SplitTf32(weight(i % 2, key + i / 2 * 4 + t));
        hi[i] = pair.hi;
        lo[i] = pair.lo;
      }
      const float* v = values + (key + t) * S::kValueStride + g;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        acc[j].Mma(hi, lo, SplitTf32(v[j * 8]), SplitTf32(v[4 * S::kValueStride + j * 8]));
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) acc[j].Fold();
  }
  __device__ float Get(int j, int i) const { return acc[j].sum[i]; }
};

// One element of out over the keys that the row sees, in plain fp32. Where a product came out not finite,
// a weight of 0 may have met NaN or infinity in a value that the row must not see.
template <typename T>
__device__ __noinline__ float PlainSum(const Problem& p, const Slab& slab, const float* scores, int64_t row,
                                       int column, const RowWeight& weight) {
  const RowScore<T> score(p, slab.head, row);
  float sum = 0.0f;
  for (int64_t key = score.bounds.begin; key < score.bounds.end; ++key) {
    if (!score.Visible(key)) continue;
    sum = fmaf(weight(scores[key]), ToFloat(ValueRow<T>(p, key, slab.kv_head)[column]), sum);
  }
  return sum;
}

template <typename T>
__device__ void StoreOut(const Problem& p, bool out_is_fp32, int64_t row, int32_t head, int column, float x) {
  const int64_t offset = row * p.out_strides.token + head * p.out_strides.head + column;
  if (out_is_fp32) {
    static_cast<float*>(p.out)[offset] = x;
  } else {
    static_cast<T*>(p.out)[offset] = FromFloat<T>(x);
  }
}

template <typename T, int kWarpsAcross>
__global__ void __launch_bounds__(kThreads)
    WeightedSumKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t v_head_dim,
                      bool form_weights, bool out_is_fp32) {
  using S = Shape<T, kWarpsAcross>;
  extern __shared__ __align__(16) unsigned char shared[];
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t block = blockIdx.x - item.block_begin;
  const int64_t row_tiles = (p.q_len + S::kRows - 1) / S::kRows;
  Slab slab;
  slab.head = static_cast<int32_t>(block / row_tiles);
  slab.kv_head = slab.head / (p.q_heads / p.kv_heads);
  slab.row0 = block % row_tiles * S::kRows;
  slab.scores = m.scores + item.offset + (slab.head * p.q_len + slab.row0) * ScoreStride(p);
  const bool all_weights = form_weights && p.weights != nullptr && p.weight_rows == nullptr;
  slab.weights = all_weights ? p.weights + slab.head * p.weights_head_stride : nullptr;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / kWarpsAcross * 16, warp_column = warp % kWarpsAcross * 64;
  WeightSource<S> weight;
  float* weights_row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = slab.row0 + warp_row + half * 8 + lane / 4;
    const bool exists = row < p.q_len;
    if (exists) weight.of[half] = RowWeight(m, item.row_offset + slab.head * p.q_len + row, form_weights);
    const bool write = all_weights && exists && warp_column == 0;
    weights_row[half] = write ? slab.weights + row * p.weights_row_stride : nullptr;
  }

  // Keys that no row of the slab sees have weights of 0, which matter only where they must be written.
  KeyBounds bounds = BoundsOf(p, slab.row0, min(slab.row0 + S::kRows, p.q_len));
  if (all_weights) bounds = {0, p.kv_len};
  const int64_t first = bounds.begin / kKeys, last = (bounds.end + kKeys - 1) / kKeys;
  const bool v_aligned = Aligned<T>(p.v, p.v_strides.token | p.pages.v_page_stride, p.v_strides.head);
  Multiplier<T, S> product;
  if (first < last) LoadStage<T, S>(p, slab, first * kKeys, v_head_dim, v_aligned, shared);
  for (int64_t step = first; step < last; ++step) {
    unsigned char* stage = shared + (step - first) % kStages * S::kStageBytes;
    if (step + 1 < last) {
      unsigned char* next = shared + (step + 1 - first) % kStages * S::kStageBytes;
      LoadStage<T, S>(p, slab, (step + 1) * kKeys, v_head_dim, v_aligned, next);
      flash::WaitCopies<1>();
    } else {
      flash::WaitCopies<0>();
    }
    __syncthreads();
    weight.tile = reinterpret_cast<const float*>(stage) + warp_row * S::kWeightStride;
    weight.keys = static_cast<int>(min(p.kv_len - step * kKeys, int64_t{kKeys}));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weight.out[half] = weights_row[half] == nullptr ? nullptr : weights_row[half] + step * kKeys;
    }
    product.Add(weight, reinterpret_cast<const T*>(stage + S::kWeightBytes) + warp_column);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int half = i / 2 % 2;
    const int64_t row = slab.row0 + warp_row + half * 8 + lane / 4;
    const int column = warp_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row >= p.q_len || column >= v_head_dim) continue;
    float x = product.Get(i / 4, i % 4);
    if (!isfinite(x)) {
      const float* scores = slab.scores + (row - slab.row0) * ScoreStride(p);
      x = PlainSum<T>(p, slab, scores, row, column, weight.of[half]);
    }
    StoreOut<T>(p, out_is_fp32, row, slab.head, column, x);
  }
}

template <typename T, int kWarpsAcross>
absl::Status LaunchKernel(const Launch& launch, bool form_weights, const WorkList& work, const Matrices& m,
                          cudaStream_t stream) {
  constexpr int kBytes = Shape<T, kWarpsAcross>::kSharedBytes;
  static_assert(Shape<T, kWarpsAcross>::kRows == OutTileRows(64 * kWarpsAcross));
  const auto kernel = WeightedSumKernel<T, kWarpsAcross>;
  ATTEND_CUDA_RETURN_IF_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const bool out_is_fp32 = launch.partial || launch.dtype == DataType::kFp32;
  kernel<<<static_cast<unsigned>(work.blocks), kThreads, kBytes, stream>>>(work.list, m, launch.v_head_dim,
                                                                           form_weights, out_is_fp32);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

template <typename T>
absl::Status LaunchFor(const Launch& launch, bool form_weights, const WorkList& work, const Matrices& m,
                       cudaStream_t stream) {
  if (launch.v_head_dim <= 64) return LaunchKernel<T, 1>(launch, form_weights, work, m, stream);
  if (launch.v_head_dim <= 128) return LaunchKernel<T, 2>(launch, form_weights, work, m, stream);
  return LaunchKernel<T, 4>(launch, form_weights, work, m, stream);
}

}  // namespace

absl::Status EnqueueWeightedSum(const Launch& launch, bool form_weights, const WorkList& work,
                                const Matrices& m, Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  switch (launch.dtype) {
    case DataType::kFp32:
      return LaunchFor<float>(launch, form_weights, work, m, s);
    case DataType::kFp16:
      return LaunchFor<__half>(launch, form_weights, work, m, s);
    case DataType::kBf16:
      return LaunchFor<__nv_bfloat16>(launch, form_weights, work, m, s);
  }
  return absl::InternalError("unknown dtype");
}

}  // namespace attend::cuda::naive
