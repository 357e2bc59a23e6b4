#include "kernels/cuda/flash/sm90/flash_sm90.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <new>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/flash/sm90/launch.h"
#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/plan.h"
#include "kernels/cuda/flash/sm90/tiles.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/status.h"

namespace attend::cuda::flash_sm90 {
namespace {

using sm90::Group;
using sm90::KernelLaunch;
using sm90::kManyGroups;
using sm90::ProblemBatch;
using sm90::Shape;
using sm90::Tile;
using sm90::TileKind;

constexpr int32_t kSharedMemoryNeeded = 232448;

bool Aligned(const void* pointer, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

// Whether a tensor map can walk it. A dimension of size 1 may have any stride.
bool IsMappable(const void* base, const Strides& strides, int64_t tokens, int64_t heads) {
  constexpr int64_t kElementsMax = int64_t{1} << 39;  // 2^40 bytes
  const auto usable = [](int64_t stride) { return stride > 0 && stride % 8 == 0 && stride < kElementsMax; };
  return Aligned(base, 16) && (tokens == 1 || usable(strides.token)) && (heads == 1 || usable(strides.head));
}

PFN_cuTensorMapEncodeTiled_v12000 EncodeFunction() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) entry = nullptr;
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

struct MapShape {
  int64_t columns, tokens, heads, batch;
  Strides strides;      // elements
  int64_t batch_bytes;  // 0 for a single problem
};

// Boxes of `rows` tokens and as many columns as the swizzle is wide.
absl::Status EncodeMap(CUtensorMap* map, DataType dtype, const void* base, const MapShape& shape,
                       int head_dim, int rows) {
  const auto encode = EncodeFunction();
  if (encode == nullptr) return absl::InternalError("the CUDA driver has no cuTensorMapEncodeTiled");
  const bool wide = head_dim % 64 == 0;
  const cuuint64_t any_stride = static_cast<cuuint64_t>((shape.columns * 2 + 15) / 16 * 16);
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(shape.columns), static_cast<cuuint64_t>(shape.tokens),
                               static_cast<cuuint64_t>(shape.heads), static_cast<cuuint64_t>(shape.batch)};
  const cuuint64_t strides[3] = {
      shape.tokens == 1 ? any_stride : static_cast<cuuint64_t>(shape.strides.token * 2),
      shape.heads == 1 ? any_stride : static_cast<cuuint64_t>(shape.strides.head * 2),
      shape.batch == 1 ? any_stride : static_cast<cuuint64_t>(shape.batch_bytes)};
  const cuuint32_t box[4] = {wide ? 64u : 32u, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUresult result = encode(
      map, dtype == DataType::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      const_cast<void*>(base), sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result)));
}

int32_t ClampWindow(int64_t window) {
  if (window == kUnbounded) return sm90::kWindowMax;
  return static_cast<int32_t>(std::min<int64_t>(window, sm90::kWindowMax));
}

void SetShape(Group* g, const Problem& p, const Launch& launch, int64_t count) {
  g->q_len = static_cast<int32_t>(p.q_len);
  g->kv_len = static_cast<int32_t>(p.kv_len);
  g->q_heads = p.q_heads;
  g->heads_per_kv_head = p.q_heads / p.kv_heads;
  g->alibi_diagonal = g->kv_len - g->q_len;
  g->diagonal = p.causal == Causal::kTopLeft ? 0 : g->alibi_diagonal;
  g->window_left = ClampWindow(p.window_left);
  g->window_right = p.causal != Causal::kNone ? 0 : ClampWindow(p.window_right);
  g->scale = p.scale;
  if (p.softcap > 0.0f) {
    constexpr double kMost = std::numeric_limits<float>::max();
    g->softcap_log2 = static_cast<float>(std::min(std::numbers::log2e * p.softcap, kMost / 2));
    g->softcap_minus_twice = -2.0f * g->softcap_log2;
    g->softcap_factor =
        static_cast<float>(std::clamp(2.0 * std::numbers::log2e * p.scale / p.softcap, -kMost, kMost));
  }
  g->heads = static_cast<int32_t>(count * p.q_heads);
  g->section_heads = sm90::SectionHeads(launch, p, g->heads);
}

absl::Status MakeGroup(Group* g, const ProblemBatch& batch, const Launch& launch, const Tile& tile) {
  const Problem& p = *batch.first;
  const int head_dim = sm90::PaddedHeadDim(std::max(launch.head_dim, launch.v_head_dim));
  const int64_t out_size = launch.partial ? 4 : 2;
  SetShape(g, p, launch, batch.count);
  g->tiles = static_cast<int32_t>((p.q_len + tile.rows() - 1) / tile.rows());
  g->out = p.out;
  g->out_token_stride = p.out_strides.token;
  g->out_head_stride = p.out_strides.head;
  g->out_batch_stride = batch.out_bytes / out_size;
  g->lse = p.lse;
  g->lse_head_stride = p.lse_head_stride;
  g->lse_batch_stride = batch.lse_bytes / 4;
  g->sinks = launch.partial ? nullptr : p.sinks;
  g->sinks_batch_stride = batch.sinks_bytes / 4;
  g->alibi_slopes = p.alibi_slopes;
  g->alibi_batch_stride = batch.alibi_bytes / 4;
  const MapShape q = {launch.head_dim, p.q_len, p.q_heads, batch.count, p.q_strides, batch.q_bytes};
  const MapShape k = {launch.head_dim, p.kv_len, p.kv_heads, batch.count, p.k_strides, batch.k_bytes};
  const MapShape v = {launch.v_head_dim, p.kv_len, p.kv_heads, batch.count, p.v_strides, batch.v_bytes};
  if (auto s = EncodeMap(&g->q, launch.dtype, p.q, q, head_dim, 64); !s.ok()) return s;
  if (auto s = EncodeMap(&g->k, launch.dtype, p.k, k, head_dim, tile.keys); !s.ok()) return s;
  return EncodeMap(&g->v, launch.dtype, p.v, v, head_dim, tile.keys);
}

using LaunchFunction = absl::Status (*)(const Shape&, const Group*, TileKind, int, Stream);

template <typename Element>
LaunchFunction LaunchFunctionOf(int head_dim) {
  switch (head_dim) {
    case 64:
      return sm90::LaunchFlash<Element, 64>;
    case 96:
      return sm90::LaunchFlash<Element, 96>;
    case 128:
      return sm90::LaunchFlash<Element, 128>;
    case 192:
      return sm90::LaunchFlash<Element, 192>;
    default:
      return sm90::LaunchFlash<Element, 256>;
  }
}

// A number that no other launch of this process has within its next four billion.
uint32_t NextTag() {
  static std::atomic<uint32_t> last{0};
  uint32_t tag;
  do {
    tag = last.fetch_add(1, std::memory_order_relaxed) + 1;
  } while (tag == 0);
  return tag;
}

// Groups in order, in the parameters where they fit, else in the workspace.
absl::Status RunKernel(const KernelLaunch& kernel, const Launch& launch, const DeviceProperties& device,
                       Carver* carver, Stream stream) {
  const int blocks = static_cast<int>(
      std::min<int64_t>(kernel.items, static_cast<int64_t>(device.multiprocessors) * kernel.tile.blocks));
  Shape shape;
  void* claims = carver->Device(sizeof(*shape.claims));
  if (kernel.items > blocks) shape.claims = static_cast<unsigned long long*>(claims);
  shape.tag = NextTag();
  shape.group_count = static_cast<int32_t>(kernel.batches.size());
  shape.item_count = static_cast<int32_t>(kernel.items);
  shape.v_head_dim = launch.v_head_dim;
  shape.partial = launch.partial;
  alignas(Group) std::byte local[kManyGroups * sizeof(Group)];
  Group* groups = reinterpret_cast<Group*>(local);
  void* list = nullptr;
  const int64_t bytes = shape.group_count * static_cast<int64_t>(sizeof(Group));
  if (shape.group_count > kManyGroups) {
    groups = static_cast<Group*>(carver->Host(bytes));
    list = carver->Device(bytes);
    shape.list = static_cast<const Group*>(list);
  }
  int64_t items = 0;
  Group* next = groups;
  for (const ProblemBatch& batch : kernel.batches) {
    Group* g = new (next++) Group;
    if (auto s = MakeGroup(g, batch, launch, kernel.tile); !s.ok()) return s;
    g->item_begin = static_cast<int32_t>(items);
    items += batch.items(kernel.tile.rows());
    g->item_end = static_cast<int32_t>(items);
  }
  if (shape.list != nullptr) {
    ATTEND_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(list, groups, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
  }
  const int head_dim = sm90::PaddedHeadDim(std::max(launch.head_dim, launch.v_head_dim));
  const LaunchFunction run = launch.dtype == DataType::kFp16 ? LaunchFunctionOf<__half>(head_dim)
                                                             : LaunchFunctionOf<__nv_bfloat16>(head_dim);
  return run(shape, groups, kernel.kind, blocks, stream);
}

bool Supports(const Launch& launch, const Problem& p, const DeviceProperties& device) {
  if (launch.kernel != Kernel::kFlash || launch.dtype == DataType::kFp32) return false;
  if (device.compute_capability != 90 || device.shared_memory_per_block_max < kSharedMemoryNeeded)
    return false;
  if (p.bias != nullptr || p.mask != nullptr || p.pages.table != nullptr) return false;
  if (p.q_len >= sm90::kLengthMax || p.kv_len >= sm90::kLengthMax) return false;
  if ((p.q_len + 63) / 64 * p.q_heads > int64_t{1} << 30) return false;
  const bool out_aligned = Aligned(p.out, 16) && (p.q_len == 1 || p.out_strides.token % 8 == 0) &&
                           (p.q_heads == 1 || p.out_strides.head % 8 == 0);
  return out_aligned && IsMappable(p.q, p.q_strides, p.q_len, p.q_heads) &&
         IsMappable(p.k, p.k_strides, p.kv_len, p.kv_heads) &&
         IsMappable(p.v, p.v_strides, p.kv_len, p.kv_heads);
}

// What RunKernel takes of the workspace.
WorkspaceNeed NeedOf(const Launch& launch, const DeviceProperties&) {
  Carver carver{Workspace{}};
  for (const KernelLaunch& kernel : sm90::PlanLaunches(launch)) {
    carver.Device(sizeof(*Shape::claims));
    const int64_t groups = static_cast<int64_t>(kernel.batches.size());
    if (groups <= kManyGroups) continue;
    carver.Host(groups * static_cast<int64_t>(sizeof(Group)));
    carver.Device(groups * static_cast<int64_t>(sizeof(Group)));
  }
  return carver.need();
}

// Problems of a launch may walk different ones; this is the first's.
TileShape FirstTile(const Launch& launch, const DeviceProperties&) {
  if (!launch.problems.empty()) {
    const Tile tile = sm90::TileOf(launch, launch.problems.front());
    return {.rows = tile.rows(), .keys = tile.keys};
  }
  const Tile tile =
      sm90::TileOf(sm90::PaddedHeadDim(std::max(launch.head_dim, launch.v_head_dim)), TileKind::kNarrow);
  return {.rows = tile.rows(), .keys = tile.keys};
}

absl::Status Enqueue(const Launch& launch, const DeviceProperties& device, const Workspace& workspace,
                     Stream stream) {
  Carver carver(workspace);
  for (const KernelLaunch& kernel : sm90::PlanLaunches(launch)) {
    if (auto s = RunKernel(kernel, launch, device, &carver, stream); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

const Variant kVariant = {
    .name = "flash_sm90",
    .supported =
        "FLASH on compute capability 9.0 in fp16 and bf16, without bias, mask and page table, tensors "
        "aligned to "
        "16 bytes, lengths below 2^29",
    .supports = Supports,
    .prefers = nullptr,
    .workspace_need = NeedOf,
    .tile = FirstTile,
    .enqueue = Enqueue,
};

}  // namespace attend::cuda::flash_sm90
