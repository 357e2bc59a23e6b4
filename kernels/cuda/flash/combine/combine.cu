// Combines the splits of a problem: the merge of partial states of kernels/merge.h, on softmax states
// (max, sum) instead of their lse.
//
//   m = max_s max_s,  w_s = exp((max_s - m) * unit) * sum_s
//   out = sum_s w_s * out_s / sum_s w_s,  lse = m * unit + log(sum_s w_s)
//
// with the sink as one more part that has no output.
//
// A CTA combines one row (query token x query head). Its warps share the splits, each adding up every
// fourth one in order, and their sums are added in order: the result depends on the number of splits alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/flash/common.cuh"
#include "kernels/cuda/flash/launch.h"
#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/launch_early.cuh"

namespace attend::cuda::flash {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kHeadDimMax = 256;
constexpr int kFloatsPerLane = kHeadDimMax / 32;

// The partial states of one row.
struct RowParts {
  const SplitState* states;
  const float* out;
  int64_t stride;  // rows from a split to the next
  int splits;
  float unit;

  __device__ float Weight(int split, float max) const {
    const SplitState s = states[split * stride];
    return exp2f((s.max - max) * unit * kLog2E) * s.sum;
  }
};

// Over all parts: max in the scores' own unit (0 if nothing is visible), the factor of the parts' weights,
// and the natural lse.
struct RowTotal {
  float max;
  float factor;
  float lse;
};

__device__ float WarpMax(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
__device__ float WarpSum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  return x;
}

// The same in every thread.
__device__ RowTotal TotalOf(const RowParts& parts, const float* sink, float (&exchange)[2][kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float max = NegativeInfinity();
  for (int s = threadIdx.x; s < parts.splits; s += kThreads) {
    max = fmaxf(max, parts.states[s * parts.stride].max);
  }
  max = WarpMax(max);
  if (lane == 0) exchange[0][warp] = max;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) max = fmaxf(max, exchange[0][w]);
  // Nothing visible anywhere, unless a NaN among the sums says otherwise.
  if (max == NegativeInfinity()) max = 0.0f;

  float sum = 0.0f;
  for (int s = threadIdx.x; s < parts.splits; s += kThreads) sum += parts.Weight(s, max);
  sum = WarpSum(sum);
  if (lane == 0) exchange[1][warp] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += exchange[1][w];

  const float natural = max * parts.unit;
  if (sum == 0.0f) return {max, 0.0f, sink != nullptr ? *sink : NegativeInfinity()};
  if (sink == nullptr) return {max, 1.0f / sum, natural + logf(sum)};
  const float top = fmaxf(natural, *sink);
  const float own = exp2f((natural - top) * kLog2E);
  const float total = sum * own + exp2f((*sink - top) * kLog2E);
  return {max, own / total, top + logf(total)};
}

// Adds up every kWarps-th split, from the warp's own on. Lane l holds columns 4l .. and 128 + 4l ...
__device__ void AddSplits(float (&sum)[kFloatsPerLane], const RowParts& parts, int dim,
                          const RowTotal& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kFloatsPerLane; ++i) sum[i] = 0.0f;
#pragma unroll 4
  for (int s = warp; s < parts.splits; s += kWarps) {
    const float weight = parts.Weight(s, total.max) * total.factor;
    const float* row = parts.out + s * parts.stride * dim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = half * 128 + lane * 4;
      if (column >= dim) continue;
      const float4 x = *reinterpret_cast<const float4*>(row + column);
      sum[half * 4] += weight * x.x;
      sum[half * 4 + 1] += weight * x.y;
      sum[half * 4 + 2] += weight * x.z;
      sum[half * 4 + 3] += weight * x.w;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ FlashArgs args) {
  WaitForLaunchBefore();  // which writes the parts
  const int32_t* first_cta =
      args.first_combine_cta != nullptr ? args.first_combine_cta : args.inline_first_combine_cta;
  const FlashGroup* groups = args.groups != nullptr ? args.groups : args.inline_groups;
  const int index = FindGroup(first_cta, args.count, blockIdx.x);
  const FlashProblem& p = groups[index].first;
  const Distances& distances = groups[index].distances;
  const int rows = p.q_len * p.group;
  const int problem = (blockIdx.x - first_cta[index]) / (rows * p.kv_heads);
  const int cta = (blockIdx.x - first_cta[index]) % (rows * p.kv_heads);
  const int kv_head = cta / rows, row = cta % rows;
  const int token = row / p.group, head = kv_head * p.group + row % p.group;
  const int dim = p.v.dim;
  const int64_t first = FirstSplitRow(p, problem) + cta;
  const RowParts parts{p.split_states + first, p.split_out + first * dim, int64_t{p.kv_heads} * rows,
                       p.splits, p.unit};

  __shared__ float exchange[2][kWarps];
  __shared__ float sums[kWarps][kHeadDimMax];
  const RowTotal total = TotalOf(parts, p.sinks != nullptr ? p.sinks + head : nullptr, exchange);
  float sum[kFloatsPerLane];
  AddSplits(sum, parts, dim, total);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kFloatsPerLane; ++i) sums[warp][i / 4 * 128 + lane * 4 + i % 4] = sum[i];
  __syncthreads();

  T* out = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
  Advance(out, problem * distances.out);
  for (int column = threadIdx.x; column < dim; column += kThreads) {
    float x = 0.0f;
    for (int w = 0; w < kWarps; ++w) x += sums[w][column];
    out[column] = T(x);
  }
  if (threadIdx.x == 0 && p.lse != nullptr) {
    float* lse = p.lse + head * p.lse_head_stride + token;
    Advance(lse, problem * distances.lse);
    *lse = total.lse;
  }
}

}  // namespace

template <typename T>
absl::Status LaunchCombine(const FlashArgs& args, int ctas, cudaStream_t stream) {
  return LaunchEarly(CombineKernel<T>, ctas, kThreads, 0, stream, args);
}

template absl::Status LaunchCombine<float>(const FlashArgs&, int, cudaStream_t);
template absl::Status LaunchCombine<__half>(const FlashArgs&, int, cudaStream_t);
template absl::Status LaunchCombine<__nv_bfloat16>(const FlashArgs&, int, cudaStream_t);

}  // namespace attend::cuda::flash
