// Pass 1 of NAIVE and ONLINE: scores = q · k^T, modified, to device memory.
//
// A block forms a tile of 128 rows x 64 keys: q and k come to shared memory 128 bytes of head_dim at a
// time, each of 8 warps multiplies 32 rows x 32 keys on tensor cores (fp16 and bf16 as they are, fp32 by
// split tf32), and the result is modified and stored in fp32.
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
constexpr int kRows = kScoreTileRows;
constexpr int kKeys = kScoreTileKeys;
constexpr int kChunkBytes = 128;  // of head_dim in shared memory at a time
constexpr int kStrideBytes = kChunkBytes + 16;

// 16x8 scores of a warp's tile in the making.
template <typename T>
struct Accumulator {
  float sum[4] = {};
  __device__ void Fold() {}
};
template <>
struct Accumulator<float> : Fp32Accumulator {};

// Multiplies the 32 bytes of head_dim at a time that q and k hold in shared memory.
template <typename T>
__device__ void MultiplyChunk(Accumulator<T> (&acc)[2][4], uint32_t q, uint32_t k) {
  const int lane = threadIdx.x % 32;
  const uint32_t q_lane = q + (lane & 15) * kStrideBytes + (lane >> 4) * 16;
  const uint32_t k_lane = k + ((lane >> 4) * 8 + (lane & 7)) * kStrideBytes + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int step = 0; step < kChunkBytes / 32; ++step) {
    uint32_t a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) flash::LoadMatrix(a[i], q_lane + i * 16 * kStrideBytes + step * 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) flash::LoadMatrix(b[i], k_lane + i * 16 * kStrideBytes + step * 32);
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          flash::Element<T>::Mma(acc[i][j].sum, a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    } else {
      uint32_t hi[2][4], lo[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const Tf32Pair pair = SplitTf32(__uint_as_float(a[i / 4][i % 4]));
        hi[i / 4][i % 4] = pair.hi;
        lo[i / 4][i % 4] = pair.lo;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Tf32Pair b0 = SplitTf32(__uint_as_float(b[j / 2][j % 2 * 2]));
        const Tf32Pair b1 = SplitTf32(__uint_as_float(b[j / 2][j % 2 * 2 + 1]));
#pragma unroll
        for (int i = 0; i < 2; ++i) acc[i][j].Mma(hi[i], lo[i], b0, b1);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i / 4][i % 4].Fold();
}

// q·k in plain fp32, for what the split could not represent: infinities and values next to them.
__device__ __noinline__ float PlainDot(const float* q, const float* k, int32_t head_dim) {
  float dot = 0.0f;
  for (int d = 0; d < head_dim; ++d) dot = fmaf(q[d], k[d], dot);
  return dot;
}

// One block's place in its problem.
struct Tile {
  int32_t head, kv_head;
  int64_t row0, key0;
};

template <typename T>
__device__ void StoreRow(const Problem& p, const Tile& tile, int64_t row, int64_t key, float* to,
                         const Accumulator<T> (&acc)[4], int half, int32_t head_dim) {
  const RowScore<T> score(p, tile.head, row);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t column = key + j * 8 + i;
      if (column >= ScoreStride(p)) continue;
      float dot = acc[j].sum[half * 2 + i];
      if constexpr (sizeof(T) == 4) {
        if (!isfinite(dot) && column < p.kv_len) {
          dot =
              PlainDot(QueryRow<float>(p, row, tile.head), KeyRow<float>(p, column, tile.kv_head), head_dim);
        }
      }
      float s;
      if (score.plain) {
        s = column >= score.bounds.begin && column < score.bounds.end ? score.scale * dot
                                                                      : NegativeInfinity();
      } else {
        s = ModifiedScore<T>(score, column, dot);
      }
      to[column] = s;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    ScoresKernel(const __grid_constant__ ProblemList list, Matrices m, int32_t head_dim) {
  __shared__ __align__(16) unsigned char shared[(kRows + kKeys) * kStrideBytes];
  const ProblemItem& item = list.Find(blockIdx.x);
  const Problem& p = item.problem;
  const int64_t block = blockIdx.x - item.block_begin;
  const int64_t key_tiles = (ScoreStride(p) + kKeys - 1) / kKeys;
  const int64_t row_tiles = (p.q_len + kRows - 1) / kRows;
  Tile tile;
  tile.key0 = block % key_tiles * kKeys;
  tile.row0 = block / key_tiles % row_tiles * kRows;
  tile.head = static_cast<int32_t>(block / key_tiles / row_tiles);
  tile.kv_head = tile.head / (p.q_heads / p.kv_heads);

  constexpr int kChunk = kChunkBytes / sizeof(T);  // elements
  constexpr int kPerCopy = 16 / sizeof(T);
  const bool q_aligned = Aligned<T>(p.q, p.q_strides.token, p.q_strides.head);
  const bool k_aligned = Aligned<T>(p.k, p.k_strides.token | p.pages.k_page_stride, p.k_strides.head);
  const KeyBounds bounds = BoundsOf(p, tile.row0, min(tile.row0 + kRows, p.q_len));
  const bool visible = tile.key0 < bounds.end && tile.key0 + kKeys > bounds.begin;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 2 * 32, warp_key = warp % 2 * 32;
  Accumulator<T> acc[2][4];
  for (int d0 = 0; visible && d0 < head_dim; d0 += kChunk) {
    if (d0 > 0) __syncthreads();
    for (int i = threadIdx.x; i < (kRows + kKeys) * 8; i += kThreads) {
      const int line = i / 8, d = d0 + i % 8 * kPerCopy;
      T* to = reinterpret_cast<T*>(shared + line * kStrideBytes + i % 8 * 16);
      if (line < kRows) {
        const bool valid = tile.row0 + line < p.q_len && d < head_dim;
        const T* from = valid ? QueryRow<T>(p, tile.row0 + line, tile.head) + d : static_cast<const T*>(p.q);
        CopyChunk(to, from, valid, q_aligned);
      } else {
        const int64_t key = tile.key0 + line - kRows;
        const bool valid = key < p.kv_len && d < head_dim;
        const T* from = valid ? KeyRow<T>(p, key, tile.kv_head) + d : static_cast<const T*>(p.k);
        CopyChunk(to, from, valid, k_aligned);
      }
    }
    flash::CommitCopies();
    flash::WaitCopies<0>();
    __syncthreads();
    const uint32_t base = flash::SharedAddress(shared);
    MultiplyChunk<T>(acc, base + warp_row * kStrideBytes, base + (kRows + warp_key) * kStrideBytes);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = tile.row0 + warp_row + i * 8 + lane / 4;
    if (row >= p.q_len) continue;
    float* to = m.scores + item.offset + (tile.head * p.q_len + row) * ScoreStride(p);
    StoreRow<T>(p, tile, row, tile.key0 + warp_key + lane % 4 * 2, to, acc[i / 2], i % 2, head_dim);
  }
}

}  // namespace

absl::Status EnqueueScores(const Launch& launch, const WorkList& work, const Matrices& m, Stream stream) {
  const unsigned grid = static_cast<unsigned>(work.blocks);
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  switch (launch.dtype) {
    case DataType::kFp32:
      ScoresKernel<float><<<grid, kThreads, 0, s>>>(work.list, m, launch.head_dim);
      break;
    case DataType::kFp16:
      ScoresKernel<__half><<<grid, kThreads, 0, s>>>(work.list, m, launch.head_dim);
      break;
    case DataType::kBf16:
      ScoresKernel<__nv_bfloat16><<<grid, kThreads, 0, s>>>(work.list, m, launch.head_dim);
      break;
  }
  ATTEND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attend::cuda::naive
