#include <algorithm>

#include "kernels/cuda/common.h"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocksPerProblemMax = 1024;

// The first row of out and lse that no variant writes.
__host__ __device__ int64_t FillBegin(const Problem& p) { return p.kv_len == 0 ? 0 : p.q_len; }

// Elements of out and of weights to walk; weights are walked whole, and written where they are padding.
__host__ __device__ int64_t OutElements(const Problem& p, int32_t v_head_dim) {
  return (p.q_len_padded - FillBegin(p)) * p.q_heads * v_head_dim;
}
__host__ __device__ bool PadsWeights(const Problem& p) {
  return p.weights != nullptr && p.weight_rows == nullptr &&
         (p.q_len_padded > p.q_len || p.kv_len_padded > p.kv_len);
}
__host__ __device__ int64_t WeightElements(const Problem& p) {
  return PadsWeights(p) ? p.q_heads * p.q_len_padded * p.kv_len_padded : 0;
}

template <typename T>
__device__ void FillOut(const Problem& p, int32_t v_head_dim, int64_t begin, int64_t step) {
  const int64_t first = FillBegin(p);
  for (int64_t i = begin; i < OutElements(p, v_head_dim); i += step) {
    const int64_t row = first + i / v_head_dim / p.q_heads;
    const int64_t head = i / v_head_dim % p.q_heads;
    static_cast<T*>(p.out)[row * p.out_strides.token + head * p.out_strides.head + i % v_head_dim] = T(0);
  }
}

__global__ void __launch_bounds__(kThreads)
    FillKernel(const __grid_constant__ ProblemList list, int32_t v_head_dim, bool partial, bool out_is_fp32) {
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t begin = (blockIdx.x - item.block_begin) * kThreads + threadIdx.x;
  const int64_t step = item.offset * kThreads;
  if (out_is_fp32) {
    FillOut<uint32_t>(p, v_head_dim, begin, step);
  } else {
    FillOut<uint16_t>(p, v_head_dim, begin, step);
  }
  const int64_t first = FillBegin(p);
  const int64_t rows = p.q_len_padded - first;
  if (p.lse != nullptr) {
    for (int64_t i = begin; i < rows * p.q_heads; i += step) {
      const int64_t head = i / rows, row = first + i % rows;
      const bool sink = row < p.q_len && p.sinks != nullptr && !partial;
      p.lse[head * p.lse_head_stride + row] = sink ? p.sinks[head] : NegativeInfinity();
    }
  }
  for (int64_t i = begin; i < WeightElements(p); i += step) {
    const int64_t key = i % p.kv_len_padded;
    const int64_t row = i / p.kv_len_padded % p.q_len_padded;
    const int64_t head = i / p.kv_len_padded / p.q_len_padded;
    if (row < p.q_len && key < p.kv_len) continue;
    p.weights[head * p.weights_head_stride + row * p.weights_row_stride + key] = 0.0f;
  }
}

}  // namespace

bool NeedsFill(const Problem& p) { return p.q_len_padded > FillBegin(p) || PadsWeights(p); }

absl::Status EnqueueFill(const Launch& launch, Carver& carver, Stream stream) {
  const int64_t list_bytes = ListBytes(launch.problems.size());
  ProblemList list;
  int64_t blocks = 0;
  auto fill = [&](size_t, ProblemItem& item) -> int64_t {
    if (!NeedsFill(item.problem)) return 0;
    const int64_t elements =
        std::max(OutElements(item.problem, launch.v_head_dim), WeightElements(item.problem));
    item.offset = std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kBlocksPerProblemMax);
    return item.offset;
  };
  if (auto s = MakeList(launch.problems, fill, carver.Device(list_bytes), carver.Host(list_bytes), stream,
                        &list, &blocks);
      !s.ok()) {
    return s;
  }
  if (blocks == 0) return absl::OkStatus();
  const bool out_is_fp32 = launch.partial || launch.dtype == DataType::kFp32;
  FillKernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      list, launch.v_head_dim, launch.partial, out_is_fp32);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attend::cuda
