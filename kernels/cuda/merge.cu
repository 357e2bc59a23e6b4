#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_merge.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / 32;

struct Parts {
  PartialState part[kMergePartsMax];
  int count;
};

// A warp to a row. A part with lse = -inf counts for nothing, whatever its out holds; NaN in any part's lse
// makes the row NaN.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MergeKernel(const __grid_constant__ Parts parts, int64_t rows, int32_t v_head_dim, const float* sinks,
                T* out, float* lse) {
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float sink = sinks == nullptr ? NegativeInfinity() : sinks[row];
  float max = sink;
  for (int i = 0; i < parts.count; ++i) max = fmaxf(max, parts.part[i].lse[row]);
  const float base = max == NegativeInfinity() ? 0.0f : max;
  float sum = expf(sink - base);
  for (int i = 0; i < parts.count; ++i) sum += expf(parts.part[i].lse[row] - base);
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int d = lane; d < v_head_dim; d += 32) {
    float x = 0.0f;
    for (int i = 0; i < parts.count; ++i) {
      const float part_lse = parts.part[i].lse[row];
      if (part_lse == NegativeInfinity()) continue;
      x = fmaf(expf(part_lse - base) * inverse, parts.part[i].out[row * v_head_dim + d], x);
    }
    out[row * v_head_dim + d] = FromFloat<T>(x);
  }
  if (lse != nullptr && lane == 0) lse[row] = sum == 0.0f ? NegativeInfinity() : base + logf(sum);
}

template <typename T>
void LaunchMerge(const Parts& parts, int64_t rows, int32_t v_head_dim, const float* sinks, void* out,
                 float* lse, int64_t blocks, Stream stream) {
  MergeKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      parts, rows, v_head_dim, sinks, static_cast<T*>(out), lse);
}

}  // namespace

absl::Status EnqueueMerge(std::span<const PartialState> parts, int64_t rows, int32_t v_head_dim,
                          DataType dtype, const float* sinks, void* out, float* lse, Stream stream) {
  if (parts.empty() || parts.size() > kMergePartsMax) {
    return absl::InvalidArgumentError(absl::StrCat("parts: ", parts.size(), " partial states; from 1 to ",
                                                   kMergePartsMax, " merge at once"));
  }
  const int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks > kBlocksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows: ", rows, "; at most ", kBlocksMax * kRowsPerBlock, " merge at once"));
  }
  if (blocks == 0) return absl::OkStatus();
  Parts list;
  std::copy(parts.begin(), parts.end(), list.part);
  list.count = static_cast<int>(parts.size());
  switch (dtype) {
    case DataType::kFp32:
      LaunchMerge<float>(list, rows, v_head_dim, sinks, out, lse, blocks, stream);
      break;
    case DataType::kFp16:
      LaunchMerge<__half>(list, rows, v_head_dim, sinks, out, lse, blocks, stream);
      break;
    case DataType::kBf16:
      LaunchMerge<__nv_bfloat16>(list, rows, v_head_dim, sinks, out, lse, blocks, stream);
      break;
  }
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attend::cuda
