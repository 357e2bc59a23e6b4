// The first kernel: a block for each tile of k and each of v of one KV head. k is scaled row by row, v column
// by column (over the keys of the tile, which are what a product sums over).
#include <algorithm>

#include "kernels/cuda/flash/fp32/flash_fp32.h"
#include "kernels/cuda/flash/fp32/split.cuh"
#include "kernels/cuda/launch_early.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/status.h"

namespace attend::cuda::flash_fp32 {
namespace {

constexpr int kThreads = 256;
constexpr int kNoExponent = 1 << 20;

// Splits rows of `values` (in shared memory, kDim + 4 apart) into the two parts of a tile. factor(row,
// column) is the scaling.
template <typename T, typename Factor>
__device__ void WriteParts(const float* values, const Factor& factor, char* parts) {
  constexpr int kChunks = T::kDim / 8;
  for (int i = threadIdx.x; i < T::kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const float* x = values + row * (T::kDim + 4) + chunk * 8;
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const HalfParts parts_of_two =
          Split(x[2 * j] * factor(row, chunk * 8 + 2 * j), x[2 * j + 1] * factor(row, chunk * 8 + 2 * j + 1));
      hi[j] = parts_of_two.hi;
      lo[j] = parts_of_two.lo;
    }
    char* to = parts + ChunkOffset<T::kDim>(row, chunk);
    *reinterpret_cast<uint4*>(to) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    *reinterpret_cast<uint4*>(to + T::kPartBytes) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
  }
}

// Loads the tile's rows, zeros behind kv_len and dim. row(key) gives a row.
template <typename T, typename Row>
__device__ void LoadTile(float* values, int64_t key0, int64_t kv_len, int dim, const Row& row) {
#pragma unroll 16
  for (int i = threadIdx.x; i < T::kKeys * T::kDim; i += kThreads) {
    const int key = i / T::kDim, d = i % T::kDim;
    const bool valid = key0 + key < kv_len && d < dim;
    values[key * (T::kDim + 4) + d] = valid ? row(key0 + key)[d] : 0.0f;
  }
}

template <typename T>
__device__ void SplitKeys(const float* values, int* exponents, char* to) {
  for (int row = threadIdx.x / 32; row < T::kKeys; row += kThreads / 32) {
    int top = 0;
    for (int d = threadIdx.x % 32; d < T::kDim; d += 32) {
      top = max(top, ExponentBits(values[row * (T::kDim + 4) + d]));
    }
    top = __reduce_max_sync(0xffffffff, top);
    if (threadIdx.x % 32 == 0) exponents[row] = top;
  }
  __syncthreads();
  WriteParts<T>(
      values, [&](int row, int) { return ScalingOf(exponents[row]).to; }, to);
  float* scale = reinterpret_cast<float*>(to + 2 * T::kPartBytes);
  if (threadIdx.x < T::kKeys) scale[threadIdx.x] = ScalingOf(exponents[threadIdx.x]).from;
  if (threadIdx.x == 0) {
    int top = 0;
    for (int row = 0; row < T::kKeys; ++row) top = max(top, exponents[row]);
    // The next power of two; infinity where there is one.
    scale[T::kKeys] = __int_as_float(min(top + 1, 255) << 23);
    for (int i = 1; i < 4; ++i) scale[T::kKeys + i] = 0.0f;  // copied along
  }
}

template <typename T>
__device__ void SplitValues(const float* values, int* exponents, int* smallest, char* to) {
  const int column = threadIdx.x % T::kDim;
  int top = 0, least = kNoExponent;
  for (int key = threadIdx.x / T::kDim; key < T::kKeys; key += kThreads / T::kDim) {
    const float x = values[key * (T::kDim + 4) + column];
    top = max(top, ExponentBits(x));
    if (x != 0.0f) least = min(least, ExponentBits(x));
  }
  atomicMax(&exponents[column], top);
  atomicMin(&smallest[column], least);
  __syncthreads();
  WriteParts<T>(
      values, [&](int, int d) { return ScalingOf(exponents[d]).to; }, to);
  float* scale = reinterpret_cast<float*>(to + 2 * T::kPartBytes);
  bool wide = false;
  for (int d = threadIdx.x; d < T::kDim; d += kThreads) {
    scale[d] = ScalingOf(exponents[d]).from;
    // Below 2^-100 the scaling stops, but the parts reach down to the smallest denormal.
    wide |= max(exponents[d], 27) - kWideExponents > smallest[d];
  }
  wide = __syncthreads_or(wide);
  if (threadIdx.x < 4) scale[T::kDim + threadIdx.x] = wide && threadIdx.x == 0 ? 1.0f : 0.0f;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    SplitKernel(const __grid_constant__ ProblemList list, char* tiles, int32_t head_dim, int32_t v_head_dim) {
  using T = Tile<kDim>;
  __shared__ float values[T::kKeys * (kDim + 4)];
  __shared__ int exponents[kDim > T::kKeys ? kDim : T::kKeys];
  __shared__ int smallest[kDim];
  AllowNextLaunch();
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t block = (blockIdx.x - item.block_begin) / 2;
  const bool of_values = (blockIdx.x - item.block_begin) % 2 != 0;
  const int64_t key_tiles = (p.kv_len + T::kKeys - 1) / T::kKeys;
  const int32_t kv_head = static_cast<int32_t>(block / key_tiles);
  const int64_t key0 = block % key_tiles * T::kKeys;
  char* to = tiles + item.offset + block * T::kBytes;

  if (of_values) {
    LoadTile<T>(values, key0, p.kv_len, v_head_dim,
                [&](int64_t key) { return ValueRow<float>(p, key, kv_head); });
    for (int d = threadIdx.x; d < kDim; d += kThreads) {
      exponents[d] = 0;
      smallest[d] = kNoExponent;
    }
    __syncthreads();
    SplitValues<T>(values, exponents, smallest, to + T::kKeyBytes);
  } else {
    LoadTile<T>(values, key0, p.kv_len, head_dim,
                [&](int64_t key) { return KeyRow<float>(p, key, kv_head); });
    __syncthreads();
    SplitKeys<T>(values, exponents, to);
  }
}

template <int kDim>
absl::Status LaunchSplit(const Launch& launch, Carver& carver, char* tiles, Stream stream) {
  ProblemList list;
  int64_t blocks = 0, offset = 0;
  auto fill = [&](size_t, ProblemItem& item) {
    item.offset = offset;
    const int64_t bytes = SplitBytes(launch, item.problem);
    offset += bytes;
    return 2 * (bytes / Tile<kDim>::kBytes);
  };
  const int64_t bytes = ListBytes(launch.problems.size());
  if (auto s =
          MakeList(launch.problems, fill, carver.Device(bytes), carver.Host(bytes), stream, &list, &blocks);
      !s.ok()) {
    return s;
  }
  SplitKernel<kDim><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      list, tiles, launch.head_dim, launch.v_head_dim);
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::Status EnqueueSplit(const Launch& launch, Carver& carver, Stream stream, const char** tiles) {
  char* to = static_cast<char*>(carver.Device(SplitBytes(launch)));
  *tiles = to;
  switch (PaddedDim(launch)) {
    case 64:
      return LaunchSplit<64>(launch, carver, to, stream);
    case 128:
      return LaunchSplit<128>(launch, carver, to, stream);
    default:
      return LaunchSplit<256>(launch, carver, to, stream);
  }
}

}  // namespace attend::cuda::flash_fp32
