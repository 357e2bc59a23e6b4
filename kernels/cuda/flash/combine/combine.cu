// Combines the splits of a problem: out = sum_s w_s * out_s with w_s = exp(lse_s - lse), and
// lse = log(sum_s exp(lse_s) + exp(sink)), the merge of partial states of kernels/merge.h.
//
// A CTA combines one row (query token x query head). Its warps share the splits, each adding up every
// fourth one in order, and their sums are added in order: the result depends on the number of splits alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/flash/common.cuh"
#include "kernels/cuda/flash/launch.h"
#include "kernels/cuda/flash/plan.h"

namespace attend::cuda::flash {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kHeadDimMax = 256;
constexpr int kFloatsPerLane = kHeadDimMax / 32;

// The partial states of one row.
struct RowParts {
  const float* lse;
  const float* out;
  int64_t stride;  // rows from a split to the next
  int splits;
};

__device__ float WarpMax(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
__device__ float WarpSum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  return x;
}

// The row's lse, over all splits and the sink. The same in every thread.
__device__ float TotalLse(const RowParts& parts, const float* sink, float (&exchange)[2][kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float top = sink != nullptr ? *sink : MinusInfinity();
  for (int s = threadIdx.x; s < parts.splits; s += kThreads) top = fmaxf(top, parts.lse[s * parts.stride]);
  top = WarpMax(top);
  if (lane == 0) exchange[0][warp] = top;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, exchange[0][w]);

  // A maximum of -inf: nothing visible anywhere, unless a NaN among the parts says otherwise.
  const float base = top == MinusInfinity() ? 0.0f : top;
  float sum = threadIdx.x == 0 && sink != nullptr ? expf(*sink - base) : 0.0f;
  for (int s = threadIdx.x; s < parts.splits; s += kThreads) sum += expf(parts.lse[s * parts.stride] - base);
  sum = WarpSum(sum);
  if (lane == 0) exchange[1][warp] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += exchange[1][w];
  return sum == 0.0f ? MinusInfinity() : base + logf(sum);
}

// Adds up every kWarps-th split, from the warp's own on. Lane l holds columns 4l .. and 128 + 4l ...
__device__ void AddSplits(float (&sum)[kFloatsPerLane], const RowParts& parts, int dim, float lse) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kFloatsPerLane; ++i) sum[i] = 0.0f;
#pragma unroll 4
  for (int s = warp; s < parts.splits; s += kWarps) {
    const float part = parts.lse[s * parts.stride];
    // Empty parts are all zeros; exp(-inf - -inf) is not.
    const float weight = part == MinusInfinity() ? 0.0f : expf(part - lse);
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
#if __CUDA_ARCH__ >= 900
  // Up to here this may run beside the kernel that writes the parts.
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int32_t* first_cta =
      args.first_combine_cta != nullptr ? args.first_combine_cta : args.inline_first_combine_cta;
  const FlashProblem* problems = args.problems != nullptr ? args.problems : args.inline_problems;
  const int index = FindProblem(first_cta, args.count, blockIdx.x);
  const FlashProblem& p = problems[index];
  const int rows = p.q_len * p.group;
  const int cta = blockIdx.x - first_cta[index];
  const int kv_head = cta / rows, row = cta % rows;
  const int token = row / p.group, head = kv_head * p.group + row % p.group;
  const int dim = p.v.dim;
  const RowParts parts{p.split_lse + cta, p.split_out + int64_t{cta} * dim, int64_t{p.kv_heads} * rows,
                       p.splits};

  __shared__ float exchange[2][kWarps];
  __shared__ float sums[kWarps][kHeadDimMax];
  const float lse = TotalLse(parts, p.sinks != nullptr ? p.sinks + head : nullptr, exchange);
  float sum[kFloatsPerLane];
  AddSplits(sum, parts, dim, lse);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kFloatsPerLane; ++i) sums[warp][i / 4 * 128 + lane * 4 + i % 4] = sum[i];
  __syncthreads();

  T* out = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
  for (int column = threadIdx.x; column < dim; column += kThreads) {
    float x = 0.0f;
    for (int w = 0; w < kWarps; ++w) x += sums[w][column];
    out[column] = T(x);
  }
  if (threadIdx.x == 0 && p.lse != nullptr) p.lse[head * p.lse_head_stride + token] = lse;
}

}  // namespace

template <typename T>
cudaError_t LaunchCombine(const FlashArgs& args, int ctas, bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, CombineKernel<T>, args);
}

template cudaError_t LaunchCombine<float>(const FlashArgs&, int, bool, cudaStream_t);
template cudaError_t LaunchCombine<__half>(const FlashArgs&, int, bool, cudaStream_t);
template cudaError_t LaunchCombine<__nv_bfloat16>(const FlashArgs&, int, bool, cudaStream_t);

}  // namespace attend::cuda::flash
