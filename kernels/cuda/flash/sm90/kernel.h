// FLASH forward on Hopper: a producer warp and one to three consumer warpgroups per thread block, one or two
// blocks per multiprocessor (tiles.h), each walking its share of the work items.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_

#include <cstdint>

#include "kernels/cuda/flash/sm90/consumer.h"
#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/producer.h"
#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/traits.h"
#include "kernels/cuda/launch_early.cuh"

namespace attend::cuda::sm90 {

template <typename T>
__device__ inline void InitShared(SharedPlan<T>& shared) {
  for (int i = 0; i < T::kQueryStages; ++i) {
    for (int w = 0; w < T::kConsumers; ++w) {
      BarrierInit(&shared.q_full[i][w], 1);
      BarrierInit(&shared.q_empty[i][w], kWarpgroupThreads / 32);
    }
  }
  for (int i = 0; i < T::kKeyStages; ++i) {
    BarrierInit(&shared.k_full[i], 1);
    BarrierInit(&shared.k_empty[i], T::kConsumers * kWarpgroupThreads / 32);
  }
  for (int i = 0; i < T::kValueStages; ++i) {
    BarrierInit(&shared.v_full[i], 1);
    BarrierInit(&shared.v_empty[i], T::kConsumers * kWarpgroupThreads / 32);
  }
  BarrierInit(&shared.chunk_done, T::kConsumers * kWarpgroupThreads / 32);
  BarrierInit(&shared.chunk_read, T::kConsumers * kWarpgroupThreads / 32);
  for (uint32_t& bits : shared.redo) bits = 0;
  BarrierInitFence();
}

// At the end of a chunk, for consumers and producer alike: whether some items have to be computed again with
// care, because of values that are not finite in a tile that some rows see in part, or of scores too large
// for the quick exponential. Rare; the same bits elsewhere. phase: of the chunk barriers, by the chunk's
// number.
template <typename T>
__device__ inline bool NeedsCare(SharedPlan<T>& shared, uint32_t phase) {
  BarrierWait(&shared.chunk_done, phase);
  uint32_t bits = 0;
  for (int i = 0; i < kChunkItems / 32; ++i) bits |= const_cast<volatile uint32_t*>(shared.redo)[i];
  return bits != 0;
}

// All items of the block, one thread.
template <typename T, int kGroups>
__device__ inline void Produce(const Params<kGroups>& params, SharedPlan<T>& shared) {
  Producer<T, kGroups> producer(params, shared);
  for (uint32_t phase = 0;; phase ^= 1) {
    const bool last = producer.Chunk();
    if (NeedsCare(shared, phase)) producer.Redo();
    if (last) return;
    BarrierWait(&shared.chunk_read, phase);
    for (uint32_t& bits : shared.redo) bits = 0;
  }
}

// All items of the block, a warpgroup.
template <typename T, int kGroups>
__device__ inline void Consume(const Params<kGroups>& params, SharedPlan<T>& shared, int warpgroup) {
  Consumer<T, kGroups> consumer(params, shared, warpgroup);
  bool last = false;
  bool careful = false;
  uint32_t phase = 0;
  // One call, for the code's size.
  while (true) {
    last |= consumer.Chunk(careful);
    if (!careful) {
      ArriveByWarp(&shared.chunk_done);
      careful = NeedsCare(shared, phase);
      if (careful) continue;
    }
    if (last) break;
    // No wait: redo is cleared before the next chunk's first item is published.
    ArriveByWarp(&shared.chunk_read);
    careful = false;
    phase ^= 1;
  }
  consumer.Finish();
}

template <typename T, int kGroups>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    FlashKernel(const __grid_constant__ Params<kGroups> params) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  SharedPlan<T>& shared = *reinterpret_cast<SharedPlan<T>*>(shared_bytes);
  // Warp-uniform, and known to be.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) InitShared(shared);
  if (threadIdx.x == 32 && params.shape.list == nullptr) {
    PrefetchTensorMap(&params.groups[0].q);
    PrefetchTensorMap(&params.groups[0].k);
    PrefetchTensorMap(&params.groups[0].v);
  }
  __syncthreads();
  AllowNextLaunch();

  if (warp < kWarpgroupThreads / 32) {
    ReleaseRegisters<T::kProducerRegisters>();
    if (threadIdx.x == 0) Produce(params, shared);
  } else {
    WaitForLaunchBefore();
    AcquireRegisters<T::kConsumerRegisters>();
    Consume(params, shared, warp / (kWarpgroupThreads / 32) - 1);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_
