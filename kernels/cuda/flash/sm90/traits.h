// Registers and shared memory of the kernel, per padded head_dim and tile.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_TRAITS_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_TRAITS_H_

#include <cstdint>

#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/tiles.h"
#include "kernels/cuda/flash/sm90/wgmma.h"

namespace attend::cuda::sm90 {

// Query rows of one warpgroup: the M of wgmma.
inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;

template <typename ElementType, int kHeadDimValue, Tile kTileValue, bool kModifiedValue>
struct Traits {
  using Element = ElementType;
  static constexpr int kHeadDim = kHeadDimValue;  // padded; of q, k and v alike
  // Whether scores pass through softcap, ALiBi or a scale that is not positive.
  static constexpr bool kModified = kModifiedValue;

  static constexpr Tile kTile = kTileValue;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kConsumers = kTile.consumers;
  static constexpr int kRows = kTile.rows();
  // Whether warpgroups leave out tiles of keys that only the others' rows see. Where a tile has no more rows
  // than keys there are few of these, and the code for it costs more.
  static constexpr bool kSkips = kRows > kKeys;
  // Where the rows see only so many keys of their first tile, the others are left out; 0: never, because the
  // code costs more, as measured at head_dim 128 and 256.
  static constexpr int kFewKeys = kConsumers == 3 ? 64 : 0;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroupThreads;
  static constexpr int kKeyStages = kTile.key_stages;
  static constexpr int kValueStages = kTile.value_stages;
  static constexpr int kQueryStages = kTile.query_stages;
  // Whether registers hold the weights of two tiles: with them, scores (kKeys / 2), weights (kKeys / 4 each)
  // and output (kHeadDim / 2) may take 192 of a thread's registers. What is left of 216 or 232 is for all
  // else.
  static constexpr bool kTwoWeights = kConsumers <= 2 && kKeys + kHeadDim / 2 <= 192 && !kModified;
  // Whether an item's rows leave through the place of its queries in shared memory, for which those of the
  // next need one of their own.
  static constexpr bool kStaged = kQueryStages > 1;
  static constexpr int kBlocks = kTile.blocks;
  // Registers per thread; the register file has 65,536.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : kConsumers == 2 ? 232 : 216;
  static_assert(kBlocks * kWarpgroupThreads * (kProducerRegisters + kConsumers * kConsumerRegisters) <=
                65536);

  // A tile in shared memory is a row of blocks, each kBlockColumns wide: a swizzle's width.
  static constexpr Swizzle kSwizzle = kHeadDim % 64 == 0 ? Swizzle::k128 : Swizzle::k64;
  static constexpr int kRowBytes = kSwizzle == Swizzle::k128 ? 128 : 64;
  static constexpr int kBlockColumns = kRowBytes / 2;
  static constexpr int kColumnBlocks = kHeadDim / kBlockColumns;
  static constexpr int kQueryBlockBytes = kWarpgroupRows * kRowBytes;
  static constexpr int kKeyBlockBytes = kKeys * kRowBytes;
  static constexpr int kQueryBytes = kColumnBlocks * kQueryBlockBytes;  // of one warpgroup
  static constexpr int kTileBytes = kColumnBlocks * kKeyBlockBytes;     // of K, and of V
};

// Items that a block walks before it looks whether some have to be walked again.
inline constexpr int kChunkItems = 256;
inline constexpr int kEndOfChunk = -1;
inline constexpr int kEndOfWork = -2;

// What the producer tells a warpgroup of its next work item. Without kSkips its tiles are all of the item's.
struct Item {
  int32_t group;  // or kEndOfChunk, kEndOfWork
  int32_t slot;   // its number within the chunk
  int32_t batch;
  int32_t head;
  int32_t row_begin;             // of this warpgroup
  int32_t tile_begin, tile_end;  // tiles of keys that some row of the warpgroup sees; walked from the last
  // Of the tiles that only other warpgroups see this one just passes the barriers.
  int32_t tiles_before : 30;  // walked before its own
  uint32_t tile_after : 1;    // whether one comes behind its own
  uint32_t few_keys : 1;      // whether its rows see only the first kFewKeys keys of their last tile
};
static_assert(sizeof(Item) == 32);

// Shared memory of a thread block. Tiles first: swizzled ones start at multiples of 1024 bytes.
template <typename T>
struct SharedPlan {
  uint8_t q[T::kQueryStages][T::kConsumers][T::kQueryBytes];
  uint8_t k[T::kKeyStages][T::kTileBytes];
  uint8_t v[T::kValueStages][T::kTileBytes];
  Barrier q_full[T::kQueryStages][T::kConsumers], q_empty[T::kQueryStages][T::kConsumers];
  Barrier k_full[T::kKeyStages], k_empty[T::kKeyStages];
  Barrier v_full[T::kValueStages], v_empty[T::kValueStages];
  Barrier chunk_done, chunk_read;  // consumers have walked a chunk; have read redo
  Item item[T::kQueryStages][T::kConsumers];
  int32_t chunk_items[kChunkItems];
  uint32_t redo[kChunkItems / 32];  // bits: items of the chunk that need the careful pass
};

// Named barriers; 0 is __syncthreads.
inline constexpr int kTurnBarrier = 1;      // + consumer: its turn to issue products
inline constexpr int kConsumerBarrier = 5;  // all consumers, in the careful pass

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_TRAITS_H_
