#include "kernels/cuda/common.h"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda {
namespace {

// A block forms 256 weights of one row: the query in shared memory, a key to each thread.
constexpr int kThreads = 256;
// Dimensions summed in one go, from zero: short chains round less.
constexpr int kChain = 32;

int64_t KeyBlocks(const Problem& p) { return (p.kv_len_padded + kThreads - 1) / kThreads; }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    WeightRowsKernel(const __grid_constant__ ProblemList list, int32_t head_dim) {
  __shared__ float query[kHeadDimMax];
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t block = blockIdx.x - item.block_begin;
  const int64_t key_blocks = item.offset;
  const int64_t key = block % key_blocks * kThreads + threadIdx.x;
  const int64_t index = block / key_blocks % p.weight_row_count;
  const int32_t head = static_cast<int32_t>(block / key_blocks / p.weight_row_count);
  const int64_t row = p.weight_rows[index];
  // Rows that do not exist give zeros, negative ones too: the row list is the caller's data.
  const bool exists = row >= 0 && row < p.q_len;
  if (exists) {
    for (int d = threadIdx.x; d < head_dim; d += kThreads) query[d] = ToFloat(QueryRow<T>(p, row, head)[d]);
  }
  __syncthreads();
  if (key >= p.kv_len_padded) return;
  float weight = 0.0f;
  if (exists && key < p.kv_len) {
    const RowScore<T> score(p, head, row);
    if (score.Visible(key)) {
      const T* k = KeyRow<T>(p, key, head / (p.q_heads / p.kv_heads));
      float dot = 0.0f;
      for (int begin = 0; begin < head_dim; begin += kChain) {
        float sum = 0.0f;
        for (int d = begin; d < min(begin + kChain, head_dim); ++d) sum = fmaf(query[d], ToFloat(k[d]), sum);
        dot += sum;
      }
      weight = expf(score.Modify(key, dot) - p.lse[head * p.lse_head_stride + row]);
    }
  }
  p.weights[head * p.weights_head_stride + index * p.weights_row_stride + key] = weight;
}

__device__ float BlockSum(float x) {
  __shared__ float warps[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (const float warp : warps) sum += warp;
  return sum;
}

// Makes a row's weights add up to 1, or to what its sink leaves: beside large scores lse has no room for the
// logarithm of their sum. Where the sink takes more than half, lse is about the sink, and what is left of 1
// would round worse. sinks: whether lse counts them, which that of a partial state does not. The blocks of
// WeightRowsKernel; the first of each row does it.
__global__ void __launch_bounds__(kThreads)
    NormalizeRowsKernel(const __grid_constant__ ProblemList list, bool sinks) {
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t block = blockIdx.x - item.block_begin;
  if (block % item.offset != 0) return;
  const int64_t index = block / item.offset % p.weight_row_count;
  const int64_t head = block / item.offset / p.weight_row_count;
  const int64_t row = p.weight_rows[index];
  if (row < 0 || row >= p.q_len) return;
  float* weights = p.weights + head * p.weights_head_stride + index * p.weights_row_stride;
  float sum = 0.0f;
  for (int64_t key = threadIdx.x; key < p.kv_len; key += kThreads) sum += weights[key];
  sum = BlockSum(sum);
  if (!(sum > 0.0f && sum < INFINITY)) return;
  const float lse = p.lse[head * p.lse_head_stride + row];
  const float sink = sinks && p.sinks != nullptr ? expf(p.sinks[head] - lse) : 0.0f;
  if (!(sink < 0.5f)) return;
  const float factor = (1.0f - sink) / sum;
  for (int64_t key = threadIdx.x; key < p.kv_len; key += kThreads) weights[key] *= factor;
}

}  // namespace

absl::Status EnqueueWeightRows(const Launch& launch, Carver& carver, Stream stream) {
  const int64_t list_bytes = ListBytes(launch.problems.size());
  ProblemList list;
  int64_t blocks = 0;
  auto fill = [](size_t, ProblemItem& item) -> int64_t {
    if (!WantsWeightRows(item.problem)) return 0;
    item.offset = KeyBlocks(item.problem);
    return item.offset * item.problem.weight_row_count * item.problem.q_heads;
  };
  if (auto s = MakeList(launch.problems, fill, carver.Device(list_bytes), carver.Host(list_bytes), stream,
                        &list, &blocks);
      !s.ok()) {
    return s;
  }
  if (blocks == 0) return absl::OkStatus();
  const unsigned grid = static_cast<unsigned>(blocks);
  const cudaStream_t cuda_stream = static_cast<cudaStream_t>(stream);
  switch (launch.dtype) {
    case DataType::kFp32:
      WeightRowsKernel<float><<<grid, kThreads, 0, cuda_stream>>>(list, launch.head_dim);
      break;
    case DataType::kFp16:
      WeightRowsKernel<__half><<<grid, kThreads, 0, cuda_stream>>>(list, launch.head_dim);
      break;
    case DataType::kBf16:
      WeightRowsKernel<__nv_bfloat16><<<grid, kThreads, 0, cuda_stream>>>(list, launch.head_dim);
      break;
  }
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  NormalizeRowsKernel<<<grid, kThreads, 0, cuda_stream>>>(list, !launch.partial);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attend::cuda
