// The producer: one thread walks the block's work items and keeps the rings of K and V full.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_PRODUCER_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_PRODUCER_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/scores.h"
#include "kernels/cuda/flash/sm90/traits.h"
#include "kernels/cuda/launch_early.cuh"

namespace attend::cuda::sm90 {

// A position in a ring of kStages slots. A single counter, because consumers have no register to spare.
template <int kStages>
class RingPosition {
 public:
  __device__ int stage() const { return count_ % kStages; }
  // Parity of the number of times that the ring has been gone round.
  __device__ uint32_t phase() const { return count_ / kStages % 2; }
  __device__ void Next() {
    ++count_;
    if constexpr ((kStages & (kStages - 1)) != 0) {
      if (count_ == 2 * kStages) count_ = 0;
    }
  }

 private:
  uint32_t count_ = 0;
};

template <typename T, int kGroups>
class Producer {
 public:
  __device__ Producer(const Params<kGroups>& params, SharedPlan<T>& shared)
      : params_(params), shape_(params.shape), shared_(shared) {
    if (shape_.list != nullptr) Begin();
  }

  // Loads a chunk of items, the next in order at each time: with the longest first, that evens out the
  // blocks. Returns whether it is the last. The first item goes by the block's number; the others are
  // claimed.
  __device__ bool Chunk() {
    int count = 0;
    while (next_ < shape_.item_count && count < kChunkItems) {
      const int item = static_cast<int>(next_);
      shared_.chunk_items[count] = item;
      while (group_ < 0 || item >= GroupAt(params_, group_).item_end) Meet(++group_);
      unsigned long long claim;
      Run<true>(group_, item, count++, &claim);
      next_ = Next(claim);
    }
    chunk_count_ = count;
    const bool last = next_ >= shape_.item_count;
    Publish({.group = last ? kEndOfWork : kEndOfChunk});
    return last;
  }

  // Loads the chunk's items that need care again.
  __device__ void Redo() {
    for (int slot = 0; slot < chunk_count_; ++slot) {
      if ((shared_.redo[slot / 32] >> slot % 32 & 1) == 0) continue;
      const int item = shared_.chunk_items[slot];
      int group = 0;
      while (item >= GroupAt(params_, group).item_end) ++group;
      Run<false>(group, item, slot, nullptr);
    }
    Publish({.group = kEndOfChunk});
  }

 private:
  // Before the first access to memory that an earlier grid may write. Block 0 opens the counter; the others
  // wait for that before their first claim. Block 0 waits for no other block, and no block starts before it,
  // so that this cannot lock up.
  __device__ void Begin() {
    WaitForLaunchBefore();
    begun_ = true;
    if (blockIdx.x == 0 && shape_.claims != nullptr) atomicExch(shape_.claims, NoClaims());
  }

  __device__ unsigned long long NoClaims() const { return static_cast<unsigned long long>(shape_.tag) << 32; }

  // Claims an item beyond the first ones. Returns the counter before.
  __device__ unsigned long long Claim() {
    if (shape_.claims == nullptr) return 0;
    const volatile unsigned long long* counter = shape_.claims;
    while (!claimed_) claimed_ = *counter >> 32 == shape_.tag;
    return atomicAdd(shape_.claims, 1ull);
  }

  // The item that a claim stands for. Blocks claim until they get one past the end; whoever is the last to do
  // so leaves the counter as if never used, for a launch that is replayed.
  __device__ int64_t Next(unsigned long long claim) {
    if (shape_.claims == nullptr) return shape_.item_count;
    const uint32_t claims = static_cast<uint32_t>(claim);
    if (claims == static_cast<uint32_t>(shape_.item_count) - 1) atomicExch(shape_.claims, 0ull);
    return static_cast<int64_t>(gridDim.x) + claims;
  }

  // Before the first use of a group's tensor maps.
  __device__ void Meet(int group) {
    if (shape_.list == nullptr) return;
    AcquireTensorMap(&GroupAt(params_, group).q);
    AcquireTensorMap(&GroupAt(params_, group).k);
    AcquireTensorMap(&GroupAt(params_, group).v);
  }

  // Loads an item, and claims the next late enough that it goes to a block that is really free, early enough
  // that the answer is there in time.
  template <bool kClaims>
  __device__ void Run(int group, int item_index, int slot, unsigned long long* claim) {
    const Group& g = GroupAt(params_, group);
    const int local = item_index - g.item_begin;
    const int section_items = g.section_heads * g.tiles;
    const int section = local / section_items;
    const int in_section = local - section * section_items;
    const int heads = min(g.section_heads, g.heads - section * g.section_heads);
    const int tile = g.tiles - 1 - in_section / heads;
    const int batch_head = section * g.section_heads + in_section % heads;

    Item item;
    item.group = group;
    item.slot = slot;
    item.batch = batch_head / g.q_heads;
    item.head = batch_head - item.batch * g.q_heads;
    item.row_begin = tile * T::kRows;
    const int last_row = min(item.row_begin + T::kRows, g.q_len) - 1;
    const int key_begin = max(0, item.row_begin + g.diagonal - g.window_left);
    const int key_end = min(g.kv_len, last_row + g.diagonal + g.window_right + 1);
    item.tile_begin = key_begin / T::kKeys;
    item.tile_end = key_end > key_begin ? (key_end + T::kKeys - 1) / T::kKeys : item.tile_begin;
    item.tiles_before = 0;
    item.tile_after = item.few_keys = 0;

    const int kv_head = item.head / g.heads_per_kv_head;
    const bool empty = item.tile_end == item.tile_begin;
    // The first item is worked out while earlier grids still run.
    if (!begun_) Begin();
    if (!empty) LoadKeys(g, item.tile_end - 1, kv_head, item.batch);
    PublishQuery<!kClaims>(g, item);
    for (int n = item.tile_end - 1; n > item.tile_begin; --n) {
      if (kClaims && n == item.tile_begin + 1) *claim = Claim();
      LoadKeys(g, n - 1, kv_head, item.batch);
      LoadValues(g, n, kv_head, item.batch);
    }
    if (kClaims && item.tile_end - item.tile_begin < 2) *claim = Claim();
    if (!empty) LoadValues(g, item.tile_begin, kv_head, item.batch);
  }

  // In the careful pass all warpgroups tend to each tile, whether their rows see it or not.
  template <bool kCareful>
  __device__ void PublishQuery(const Group& g, Item item) {
#pragma unroll 1
    for (int w = 0; w < T::kConsumers; ++w) {
      BarrierWait(&shared_.q_empty[query_.stage()][w], query_.phase() ^ 1);
      // Copies first, to hide the rest behind them: their bytes may arrive before they are expected.
      Barrier* full = &shared_.q_full[query_.stage()][w];
#pragma unroll
      for (int b = 0; b < T::kColumnBlocks; ++b) {
        CopyBox(shared_.q[query_.stage()][w] + b * T::kQueryBlockBytes, &g.q, b * T::kBlockColumns,
                item.row_begin, item.head, item.batch, full);
      }
      shared_.item[query_.stage()][w] = kCareful || !T::kSkips ? item : OwnTiles(g, item);
      BarrierArriveExpect(full, T::kQueryBytes);
      item.row_begin += kWarpgroupRows;
    }
    query_.Next();
  }

  // The item for the warpgroup whose rows begin at row_begin.
  __device__ static Item OwnTiles(const Group& g, Item item) {
    const int last_row = min(item.row_begin + kWarpgroupRows, g.q_len) - 1;
    const int key_begin = KeysOfRow(g, item.row_begin).low;
    const int key_end = KeysOfRow(g, last_row).high;
    const int tile_begin = item.tile_begin, tile_end = item.tile_end;
    if (last_row >= item.row_begin && key_end > key_begin) {
      item.tile_begin = key_begin / T::kKeys;
      item.tile_end = (key_end + T::kKeys - 1) / T::kKeys;
      item.tile_after = item.tile_begin > tile_begin;
      item.few_keys = key_end - (item.tile_end - 1) * T::kKeys <= T::kFewKeys;
    } else {
      item.tile_end = tile_begin;
    }
    item.tiles_before = tile_end - item.tile_end;
    return item;
  }

  // A word to the consumers without queries.
  __device__ void Publish(const Item& item) {
#pragma unroll 1
    for (int w = 0; w < T::kConsumers; ++w) {
      BarrierWait(&shared_.q_empty[query_.stage()][w], query_.phase() ^ 1);
      shared_.item[query_.stage()][w] = item;
      BarrierArrive(&shared_.q_full[query_.stage()][w]);
    }
    query_.Next();
  }

  __device__ void LoadKeys(const Group& g, int n, int kv_head, int batch) {
    BarrierWait(&shared_.k_empty[key_.stage()], key_.phase() ^ 1);
    Load(&g.k, shared_.k[key_.stage()], &shared_.k_full[key_.stage()], n, kv_head, batch);
    key_.Next();
  }
  __device__ void LoadValues(const Group& g, int n, int kv_head, int batch) {
    BarrierWait(&shared_.v_empty[value_.stage()], value_.phase() ^ 1);
    Load(&g.v, shared_.v[value_.stage()], &shared_.v_full[value_.stage()], n, kv_head, batch);
    value_.Next();
  }
  __device__ void Load(const CUtensorMap* map, uint8_t* to, Barrier* full, int n, int kv_head, int batch) {
    BarrierArriveExpect(full, T::kTileBytes);
#pragma unroll
    for (int b = 0; b < T::kColumnBlocks; ++b) {
      CopyBox(to + b * T::kKeyBlockBytes, map, b * T::kBlockColumns, n * T::kKeys, kv_head, batch, full);
    }
  }

  const Params<kGroups>& params_;
  const Shape& shape_;
  SharedPlan<T>& shared_;
  RingPosition<T::kQueryStages> query_;
  RingPosition<T::kKeyStages> key_;
  RingPosition<T::kValueStages> value_;
  int64_t next_ = blockIdx.x;
  bool begun_ = false;
  bool claimed_ = false;
  int group_ = -1;
  int chunk_count_ = 0;
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_PRODUCER_H_
