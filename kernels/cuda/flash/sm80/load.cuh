// Tiles of Q, K and V from global into shared memory.
//
// A tile is rows of kHeadDim elements in 16-byte chunks; a chunk's place is swizzled so that the eight rows
// that ldmatrix reads at a time lie in different banks. Chunks behind the tensor's head_dim, and rows that
// do not exist, are filled with zeros without reading anything.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_LOAD_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_LOAD_CUH_

#include <cstdint>

#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/flash/sm80/tile.h"

namespace attend::cuda::flash {

// Byte offset of a chunk in a tile. Rows of 64, 128, 192 and 256 elements are whole multiples of the 128
// bytes that the banks span: XOR with the row. Rows of 96 alternate between two halves of the banks by
// themselves: two rows share a pattern of four.
template <int kHeadDim>
__device__ inline uint32_t ChunkOffset(int row, int chunk) {
  const int pattern = kHeadDim == 96 ? (row >> 1) & 3 : row & 7;
  return row * (kHeadDim * 2) + ((chunk ^ pattern) << 4);
}

// Copies 8 elements that lie on no 16-byte boundary; waits for them.
__device__ inline void CopyChunkSlowly(unsigned char* shared, const uint16_t* global, bool valid) {
  uint16_t* to = reinterpret_cast<uint16_t*>(shared);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = valid ? global[i] : uint16_t{0};
}

// The first element of a key of the source.
__device__ inline const uint16_t* KeyRow(const KeySource& source, int key) {
  if (source.page_table == nullptr) return source.base + key * source.token_stride;
  const int32_t page = source.page_table[key >> source.page_shift];
  const int in_page = key & ((1 << source.page_shift) - 1);
  return source.base + page * source.page_stride + in_page * source.token_stride;
}

// Keys key0 .. key0 + kKeys - 1, zeros where not in [begin, end). Asynchronous: part of this thread's open
// group of copies. key0 is a multiple of kKeys, and the tile holds a key of [begin, end).
template <typename Tile>
__device__ inline void LoadKeys(unsigned char* slot, const KeySource& source, int key0, int begin, int end) {
  constexpr int kChunks = Tile::kHeadDim / 8;
  constexpr int kLanes = kChunks & -kChunks;  // threads side by side in a row: the largest power of two
  constexpr int kRowStep = Tile::kThreads / kLanes;
  static_assert(Tile::kKeys % kRowStep == 0);
  const int row0 = threadIdx.x / kLanes, chunk0 = threadIdx.x % kLanes;
  if (!source.vectors) {
    for (int index = threadIdx.x; index < Tile::kKeys * kChunks; index += Tile::kThreads) {
      const int row = index / kChunks, chunk = index % kChunks;
      const bool valid = key0 + row >= begin && key0 + row < end && chunk * 8 < source.dim;
      CopyChunkSlowly(slot + ChunkOffset<Tile::kHeadDim>(row, chunk),
                      valid ? KeyRow(source, key0 + row) + chunk * 8 : source.base, valid);
    }
    return;
  }
  const uint32_t shared = SharedAddress(slot);
  const auto copy_row = [&](int row, const uint16_t* from) {
    const bool exists = key0 + row >= begin && key0 + row < end;
#pragma unroll
    for (int chunk = chunk0; chunk < kChunks; chunk += kLanes) {
      CopyAsync16(shared + ChunkOffset<Tile::kHeadDim>(row, chunk), from + chunk * 8,
                  exists && chunk * 8 < source.dim);
    }
  };
  const bool one_page = source.page_table == nullptr || (1 << source.page_shift) >= Tile::kKeys;
  const int anchor = max(key0, begin);
  if (one_page) {
    // One row's address gives them all.
    const uint16_t* from = KeyRow(source, anchor) + (key0 + row0 - anchor) * source.token_stride;
    const int64_t step = kRowStep * source.token_stride;
#pragma unroll
    for (int i = 0; i < Tile::kKeys / kRowStep; ++i) {
      copy_row(row0 + i * kRowStep, from);
      from += step;
    }
    return;
  }
  // Several pages: look a few rows up before copying any, so that the lookups overlap. Entries of pages that
  // hold no key of the range are not read.
  constexpr int kLookups = 4;
#pragma unroll
  for (int i = 0; i < Tile::kKeys / kRowStep; i += kLookups) {
    const uint16_t* from[kLookups];
#pragma unroll
    for (int j = 0; j < kLookups; ++j) {
      from[j] = KeyRow(source, min(max(key0 + row0 + (i + j) * kRowStep, anchor), end - 1));
    }
#pragma unroll
    for (int j = 0; j < kLookups; ++j) {
      if ((i + j) * kRowStep < Tile::kKeys) copy_row(row0 + (i + j) * kRowStep, from[j]);
    }
  }
}

// The query rows of the CTA's tile.
template <typename Tile>
__device__ inline void LoadQueries(unsigned char* to, const Shared<Tile>& shared) {
  constexpr int kChunks = Tile::kHeadDim / 8;
  const TensorView& q = shared.problem.q;
  const uint16_t* base = static_cast<const uint16_t*>(q.data);
  for (int index = threadIdx.x; index < Tile::kRows * kChunks; index += Tile::kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    const int token = shared.row_token[row];
    const bool valid = token >= 0 && chunk * 8 < q.dim;
    const uint16_t* from =
        valid ? base + token * q.token_stride + shared.row_head[row] * q.head_stride + chunk * 8 : base;
    unsigned char* chunk_to = to + ChunkOffset<Tile::kHeadDim>(row, chunk);
    if (q.vectors != 0) {
      CopyAsync16(SharedAddress(chunk_to), from, valid);
    } else {
      CopyChunkSlowly(chunk_to, from, valid);
    }
  }
}

// Rewrites a tile of V in shared memory for the exact passes (see kernel.cuh): kFinite keeps what is finite
// and zeroes the rest; kPlus and kMinus put a one where there is NaN or an infinity of that sign, else zero.
enum class Pass { kPlain, kFinite, kPlus, kMinus };

template <typename T>
__device__ inline uint32_t Rewrite(uint32_t bits, Pass pass) {
  constexpr uint32_t kExponent = Element<T>::kExponent;
  const bool finite = (bits & kExponent) != kExponent;
  if (pass == Pass::kFinite) return finite ? bits : 0;
  const bool nan = (bits & 0x7fff) > kExponent;
  const bool negative = (bits & 0x8000) != 0;
  return !finite && (nan || negative == (pass == Pass::kMinus)) ? Element<T>::kOne : 0;
}

template <typename T, typename Tile>
__device__ inline void RewriteValues(unsigned char* slot, Pass pass) {
  uint32_t* words = reinterpret_cast<uint32_t*>(slot);
  for (int i = threadIdx.x; i < Tile::kSlotBytes / 4; i += Tile::kThreads) {
    const uint32_t w = words[i];
    words[i] = Rewrite<T>(w & 0xffff, pass) | Rewrite<T>(w >> 16, pass) << 16;
  }
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_LOAD_CUH_
