#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/device/cuda/transfers.h"

namespace attend::server {
namespace {

using Transfer = CudaApi::Transfer;

// On an H200, 16 copies of 16 KiB take 52 us by cudaMemcpyAsync, 62 by cudaMemcpyBatchAsync and 22 by a
// kernel; 16 of 48 KiB 60, 29 and 40 (2026-11-30, each with its event).
constexpr int64_t kSmallBytes = int64_t{32} << 10;  // on average

constexpr int kThreads = 128;
constexpr int kBlocksMax = 256;           // what keeps PCIe busy
constexpr int kVectorsPerThread = 4;      // in flight at once
constexpr int kTransfersPerLaunch = 128;  // parameters of more than 4 KB slow a launch down

struct TransferList {
  Transfer items[kTransfersPerLaunch];
};
static_assert(sizeof(TransferList) <= 4000);

// Blocks [i * blocks_each, (i + 1) * blocks_each) make transfer i.
__global__ void __launch_bounds__(kThreads) CopyKernel(TransferList list, int blocks_each) {
  const Transfer& t = list.items[blockIdx.x / blocks_each];
  const int64_t first = static_cast<int64_t>(blockIdx.x % blocks_each) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(blocks_each) * kThreads;
  const bool aligned = (reinterpret_cast<uintptr_t>(t.to) | reinterpret_cast<uintptr_t>(t.from)) % 16 == 0;
  const int64_t vectors = aligned ? t.bytes / 16 : 0;
  const auto* from = static_cast<const uint4*>(t.from);
  auto* to = static_cast<uint4*>(t.to);
  for (int64_t i = first; i < vectors; i += step * kVectorsPerThread) {
    uint4 held[kVectorsPerThread];
#pragma unroll
    for (int u = 0; u < kVectorsPerThread; ++u) {
      if (i + u * step < vectors) held[u] = from[i + u * step];
    }
#pragma unroll
    for (int u = 0; u < kVectorsPerThread; ++u) {
      if (i + u * step < vectors) to[i + u * step] = held[u];
    }
  }
  for (int64_t i = vectors * 16 + first; i < t.bytes; i += step) {
    static_cast<char*>(t.to)[i] = static_cast<const char*>(t.from)[i];
  }
}

cudaError_t CopyByKernel(std::span<const Transfer> transfers, cudaStream_t stream) {
  while (!transfers.empty()) {
    const auto part = transfers.first(std::min<size_t>(transfers.size(), kTransfersPerLaunch));
    TransferList list = {};
    std::copy(part.begin(), part.end(), list.items);
    const int blocks_each = std::max(1, kBlocksMax / static_cast<int>(part.size()));
    CopyKernel<<<static_cast<unsigned>(part.size()) * blocks_each, kThreads, 0, stream>>>(list, blocks_each);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    transfers = transfers.subspan(part.size());
  }
  return cudaSuccess;
}

cudaError_t CopyByEngine(std::span<const Transfer> transfers, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  if (transfers.size() > 1) {
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<size_t> bytes;
    for (const Transfer& t : transfers) {
      to.push_back(t.to);
      from.push_back(t.from);
      bytes.push_back(static_cast<size_t>(t.bytes));
    }
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;  // the attributes hold from here on
    return cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes, &first, 1,
                                stream);
  }
#endif
  for (const Transfer& t : transfers) {
    const cudaError_t error =
        cudaMemcpyAsync(t.to, t.from, static_cast<size_t>(t.bytes), cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t EnqueueTransfers(std::span<const Transfer> transfers, cudaStream_t stream) {
  int64_t bytes = 0;
  for (const Transfer& t : transfers) bytes += t.bytes;
  const auto count = static_cast<int64_t>(transfers.size());
  const bool small = count > 1 && bytes < count * kSmallBytes;
  return small ? CopyByKernel(transfers, stream) : CopyByEngine(transfers, stream);
}

}  // namespace attend::server
