// FLASH forward on Hopper: a producer warp and two or three consumer warpgroups per thread block, one block
// per multiprocessor, walking its share of the work items.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_

#include <cstdint>

#include "kernels/cuda/flash/sm90/consumer.h"
#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/producer.h"
#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/traits.h"

namespace attend::cuda::sm90 {

template <typename T>
__device__ inline void InitShared(SharedPlan<T>& shared) {
  for (int i = 0; i < T::kQueryStages; ++i) {
    for (int w = 0; w < T::kConsumers; ++w) {
      BarrierInit(&shared.q_full[i][w], 1);
      BarrierInit(&shared.q_empty[i][w], kWarpgroupThreads / 32);
    }
  }
  for (int i = 0; i < T::kStages; ++i) {
    BarrierInit(&shared.k_full[i], 1);
    BarrierInit(&shared.v_full[i], 1);
    BarrierInit(&shared.k_empty[i], T::kConsumers * kWarpgroupThreads / 32);
    BarrierInit(&shared.v_empty[i], T::kConsumers * kWarpgroupThreads / 32);
  }
  for (uint32_t& bits : shared.redo) bits = 0;
  BarrierInitFence();
}

// At the end of a chunk, for consumers and producer alike: whether some items have to be computed again with
// care, because of values that are not finite in a tile that some rows see in part, or of scores too large
// for the quick exponential. Rare; the same bits elsewhere.
template <typename T>
__device__ inline bool NeedsCare(SharedPlan<T>& shared) {
  NamedBarrierSync(kChunkBarrier, T::kConsumers * kWarpgroupThreads + 32);
  uint32_t bits = 0;
  for (int i = 0; i < kChunkItems / 32; ++i) bits |= const_cast<volatile uint32_t*>(shared.redo)[i];
  return bits != 0;
}

// Before the next chunk.
template <typename T>
__device__ inline void ForgetCare(SharedPlan<T>& shared) {
  NamedBarrierSync(kChunkBarrier, T::kConsumers * kWarpgroupThreads + 32);
  if (threadIdx.x < kChunkItems / 32) shared.redo[threadIdx.x] = 0;
  __syncwarp();
}

template <typename T, int kGroups>
__global__ void __launch_bounds__(T::kThreads, 1)
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
  LetNextGridStart();
  WaitForEarlierGrids();

  if (warp < kWarpgroupThreads / 32) {
    ReleaseRegisters<T::kProducerRegisters>();
    if (warp != 0) return;
    Producer<T, kGroups> producer(params, shared);
    bool last;
    do {
      last = threadIdx.x == 0 && producer.Chunk();
      last = __shfl_sync(0xffffffffu, last, 0);
      if (NeedsCare(shared) && threadIdx.x == 0) producer.Redo();
      __syncwarp();
      if (!last) ForgetCare(shared);
    } while (!last);
  } else {
    AcquireRegisters<T::kConsumerRegisters>();
    Consumer<T, kGroups> consumer(params, shared, warp / (kWarpgroupThreads / 32) - 1);
    // One call, for the code's size.
    bool last = false;
    bool careful = false;
    while (true) {
      last |= consumer.Chunk(careful);
      careful = !careful && NeedsCare(shared);
      if (careful) continue;
      if (last) break;
      ForgetCare(shared);
    }
    consumer.Finish();
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_KERNEL_H_
