// Thin named wrappers over the Hopper instructions that the kernel needs: those of <cuda/ptx> where it has
// them, our own for setmaxnreg, named barriers and the approximate exponential, which it has not. wgmma has a
// header of its own, and so has what all kernels share for programmatic launches (launch_early.cuh).
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_PTX_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_PTX_H_

#include <cstdint>
#include <cuda/ptx>

namespace attend::cuda::sm90 {

// --- mbarriers: a phase ends when the expected arrivals and bytes are in ---

using Barrier = uint64_t;

__device__ inline void BarrierInit(Barrier* barrier, uint32_t arrivals) {
  ::cuda::ptx::mbarrier_init(barrier, arrivals);
}

// Makes initialised barriers visible to the copy engine.
__device__ inline void BarrierInitFence() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

__device__ inline void BarrierWait(Barrier* barrier, uint32_t phase) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, phase)) {
  }
}

__device__ inline void BarrierArrive(Barrier* barrier) { ::cuda::ptx::mbarrier_arrive(barrier); }

// Arrives once for the warp, after what its threads have written.
__device__ inline void ArriveByWarp(Barrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(barrier);
}

// Arrives, and expects that many bytes from the copy engine in this phase.
__device__ inline void BarrierArriveExpect(Barrier* barrier, uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, barrier, bytes);
}

// --- the copy engine ---

// Copies a box of a [batch, head, token, column] tensor; what lies outside the tensor arrives as zeros.
__device__ inline void CopyBox(void* shared, const void* tensor_map, int32_t column, int32_t token,
                               int32_t head, int32_t batch, Barrier* barrier) {
  const int32_t coordinates[4] = {column, token, head, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, tensor_map,
                                    coordinates, barrier);
}

__device__ inline void PrefetchTensorMap(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

// Lets the copy engine see a tensor map that an earlier copy wrote to global memory.
__device__ inline void AcquireTensorMap(const void* tensor_map) {
  ::cuda::ptx::fence_proxy_tensormap_generic(::cuda::ptx::sem_acquire, ::cuda::ptx::scope_gpu, tensor_map,
                                             ::cuda::ptx::n32_t<128>());
}

// Orders this thread's ordinary writes to shared memory before later reads by the tensor cores.
__device__ inline void SharedWritesToAsyncProxy() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// Four 8 x 8 matrices of 16-bit elements from registers to shared memory. row: from lane l, that of row l % 8
// of matrix l / 8.
__device__ inline void StoreMatrices(void* row, const uint32_t (&pairs)[4]) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// 16 bytes to global memory, 16-byte aligned, in one store. Left to the compiler, a vector loaded well before
// it is stored goes out in four of 4 bytes.
__device__ inline void StoreVector(void* to, const uint4& vector) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(vector.x),
               "r"(vector.y), "r"(vector.z), "r"(vector.w)
               : "memory");
}

// --- warps and warpgroups ---

// Gives registers back to the pool, or takes them: the producer needs few, the consumers many.
template <int kRegisters>
__device__ inline void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void AcquireRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Named barriers: of the `threads` taking part, some wait and some only arrive.
__device__ inline void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 2^x to about 2 ulp; 2^-inf is 0.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_PTX_H_
