// The passes over rows between the two matrix products. Each reads the scores from device memory, and
// writes them where it changes them: the lecture's count of bytes, and nothing saved on it. A short row
// belongs to a warp, a long one to a block.
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/score.cuh"

namespace attend::cuda::naive {
namespace {

constexpr int kThreads = 256;

// A maximum and the sum of exp(s - max), so far; the online softmax's state.
struct Stats {
  float max;
  float sum;

  // Rows whose maximum is -inf have only exponentials of 0, or of NaN.
  __device__ static float Safe(float max) { return max == NegativeInfinity() ? 0.0f : max; }

  __device__ void Add(const float (&s)[4]) {
    const float top = fmaxf(fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])), max);
    const float base = Safe(top);
    if (top > max) sum *= expf(max - base);
    max = top;
    sum += expf(s[0] - base) + expf(s[1] - base) + (expf(s[2] - base) + expf(s[3] - base));
  }
  __device__ Stats Merge(Stats other) const {
    const float top = fmaxf(max, other.max);
    const float base = Safe(top);
    return {top, sum * expf(max - base) + other.sum * expf(other.max - base)};
  }
};

template <typename Value, typename Op>
__device__ Value ReduceWarp(Value v, Op op) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    Value other;
    if constexpr (sizeof(Value) == sizeof(Stats)) {
      other = {__shfl_xor_sync(0xffffffff, v.max, i), __shfl_xor_sync(0xffffffff, v.sum, i)};
    } else {
      other = __shfl_xor_sync(0xffffffff, v, i);
    }
    v = op(v, other);
  }
  return v;
}

// The row's value in every thread of the row's group.
template <typename Value, typename Op>
__device__ Value Reduce(Value v, Op op, bool whole_block) {
  __shared__ Value parts[kThreads / 32];
  v = ReduceWarp(v, op);
  if (!whole_block) return v;
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
  for (int i = 1; i < kThreads / 32; ++i) v = op(v, parts[i]);
  return v;
}

struct Row {
  float* scores;
  int64_t stride;  // elements in the row
  int64_t index;   // in row_max and row_sum
  int32_t head;
  int64_t row;
  int begin, step;  // this thread's elements: 4 from begin on, then step further
  bool whole_block;
};

__device__ void WriteLse(const Problem& p, const Row& r, float max, float sum) {
  if (p.lse == nullptr || r.begin != 0) return;
  p.lse[r.head * p.lse_head_stride + r.row] = sum == 0.0f ? NegativeInfinity() : Stats::Safe(max) + logf(sum);
}

__device__ float4 Load(const Row& r, int64_t i) { return *reinterpret_cast<const float4*>(r.scores + i); }
__device__ void Store(const Row& r, int64_t i, float4 v) { *reinterpret_cast<float4*>(r.scores + i) = v; }

__device__ void MaxPass(const Problem& p, const Row& r, const Matrices& m, bool sinks) {
  float max = NegativeInfinity();
#pragma unroll 4
  for (int64_t i = r.begin; i < r.stride; i += r.step) {
    const float4 s = Load(r, i);
    max = fmaxf(max, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
  }
  max = Reduce(
      max, [](float a, float b) { return fmaxf(a, b); }, r.whole_block);
  if (sinks) max = fmaxf(max, p.sinks[r.head]);
  if (r.begin == 0) m.row_max[r.index] = max;
}

__device__ void ExpPass(const Row& r, const Matrices& m) {
  const float base = Stats::Safe(m.row_max[r.index]);
#pragma unroll 4
  for (int64_t i = r.begin; i < r.stride; i += r.step) {
    const float4 s = Load(r, i);
    Store(r, i, make_float4(expf(s.x - base), expf(s.y - base), expf(s.z - base), expf(s.w - base)));
  }
}

__device__ void SumPass(const Problem& p, const Row& r, const Matrices& m, bool sinks) {
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t i = r.begin; i < r.stride; i += r.step) {
    const float4 s = Load(r, i);
    sum += (s.x + s.y) + (s.z + s.w);
  }
  sum = Reduce(
      sum, [](float a, float b) { return a + b; }, r.whole_block);
  const float max = m.row_max[r.index];
  if (sinks) sum += expf(p.sinks[r.head] - Stats::Safe(max));
  if (r.begin == 0) m.row_sum[r.index] = sum;
  WriteLse(p, r, max, sum);
}

// What is 0 stays 0, in a row whose sum is 0 or NaN too.
__device__ float Quotient(float x, float inverse_sum) { return x == 0.0f ? 0.0f : x * inverse_sum; }

__device__ void DividePass(const Problem& p, const Row& r, const Matrices& m) {
  const float inverse_sum = 1.0f / m.row_sum[r.index];
  float* weights = p.weights == nullptr || p.weight_rows != nullptr
                       ? nullptr
                       : p.weights + r.head * p.weights_head_stride + r.row * p.weights_row_stride;
#pragma unroll 4
  for (int64_t i = r.begin; i < r.stride; i += r.step) {
    const float4 s = Load(r, i);
    const float w[4] = {Quotient(s.x, inverse_sum), Quotient(s.y, inverse_sum), Quotient(s.z, inverse_sum),
                        Quotient(s.w, inverse_sum)};
    Store(r, i, make_float4(w[0], w[1], w[2], w[3]));
    if (weights == nullptr) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < p.kv_len) weights[i + j] = w[j];
    }
  }
}

__device__ void StatsPass(const Problem& p, const Row& r, const Matrices& m, bool sinks) {
  Stats stats = {NegativeInfinity(), 0.0f};
#pragma unroll 4
  for (int64_t i = r.begin; i < r.stride; i += r.step) {
    const float4 v = Load(r, i);
    const float s[4] = {v.x, v.y, v.z, v.w};
    stats.Add(s);
  }
  stats = Reduce(
      stats, [](Stats a, Stats b) { return a.Merge(b); }, r.whole_block);
  if (sinks) stats = stats.Merge({p.sinks[r.head], 1.0f});
  if (r.begin == 0) {
    m.row_max[r.index] = stats.max;
    m.row_sum[r.index] = stats.sum;
  }
  WriteLse(p, r, stats.max, stats.sum);
}

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, 5)
    RowsKernel(const __grid_constant__ ProblemList list, Matrices m, bool partial) {
  AllowNextLaunch();
  WaitForLaunchBefore();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  Row r;
  r.stride = ScoreStride(p);
  const int64_t rows_per_block = RowsPerBlock(r.stride);
  const int group = kThreads / static_cast<int>(rows_per_block);
  const int64_t index = (blockIdx.x - item.block_begin) * rows_per_block + threadIdx.x / group;
  if (index >= p.q_heads * p.q_len) return;
  r.whole_block = rows_per_block == 1;
  r.head = static_cast<int32_t>(index / p.q_len);
  r.row = index % p.q_len;
  r.index = item.row_offset + index;
  r.scores = m.scores + item.offset + index * r.stride;
  r.begin = threadIdx.x % group * 4;
  r.step = group * 4;
  const bool sinks = p.sinks != nullptr && !partial;
  if constexpr (kPass == Pass::kMax) MaxPass(p, r, m, sinks);
  if constexpr (kPass == Pass::kExp) ExpPass(r, m);
  if constexpr (kPass == Pass::kSum) SumPass(p, r, m, sinks);
  if constexpr (kPass == Pass::kDivide) DividePass(p, r, m);
  if constexpr (kPass == Pass::kStats) StatsPass(p, r, m, sinks);
  if constexpr (kPass == Pass::kShort) {  // a warp's row
    MaxPass(p, r, m, sinks);
    __syncwarp();
    ExpPass(r, m);
    SumPass(p, r, m, sinks);
    __syncwarp();
    DividePass(p, r, m);
  }
}

using PassKernel = void (*)(ProblemList, Matrices, bool);

PassKernel KernelOf(Pass pass) {
  switch (pass) {
    case Pass::kMax:
      return RowsKernel<Pass::kMax>;
    case Pass::kExp:
      return RowsKernel<Pass::kExp>;
    case Pass::kSum:
      return RowsKernel<Pass::kSum>;
    case Pass::kDivide:
      return RowsKernel<Pass::kDivide>;
    case Pass::kStats:
      return RowsKernel<Pass::kStats>;
    case Pass::kShort:
      break;
  }
  return RowsKernel<Pass::kShort>;
}

}  // namespace

absl::Status EnqueuePass(const Launch& launch, Pass pass, const WorkList& work, const Matrices& m,
                         Stream stream) {
  return LaunchEarly(KernelOf(pass), work.blocks, kThreads, 0, stream, work.list, m, launch.partial);
}

}  // namespace attend::cuda::naive
