// Tiles of the simple kernels in shared memory: rows of whole 16-byte chunks, padded to an odd number of
// them so that ldmatrix meets no bank twice.
#ifndef ATTEND_KERNELS_CUDA_NAIVE_TILE_CUH_
#define ATTEND_KERNELS_CUDA_NAIVE_TILE_CUH_

#include <cstdint>

#include "kernels/cuda/flash/sm80/ptx.cuh"

namespace attend::cuda::naive {

// Whether rows that begin at base and lie stride elements apart can be read 16 bytes at a time.
template <typename T>
__device__ inline bool Aligned(const void* base, int64_t token_stride, int64_t head_stride) {
  const uint64_t bits = reinterpret_cast<uint64_t>(base) |
                        static_cast<uint64_t>((token_stride | head_stride) * int64_t{sizeof(T)});
  return bits % 16 == 0;
}

// Copies one 16-byte chunk of a row to shared memory, zeros where it is not valid. With aligned the copy is
// asynchronous, part of this thread's open group.
template <typename T>
__device__ inline void CopyChunk(T* shared, const T* global, bool valid, bool aligned) {
  if (aligned) {
    flash::CopyAsync16(flash::SharedAddress(shared), global, valid);
    return;
  }
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) shared[i] = valid ? global[i] : T(0.0f);
}

}  // namespace attend::cuda::naive

#endif  // ATTEND_KERNELS_CUDA_NAIVE_TILE_CUH_
