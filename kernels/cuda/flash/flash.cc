#include "kernels/cuda/flash/flash.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/flash/groups.h"
#include "kernels/cuda/flash/heuristics.h"
#include "kernels/cuda/flash/launch.h"
#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/flash/sm80/tile.h"
#include "kernels/cuda/list_copy.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/status.h"

namespace attend::cuda::flash {
namespace {

constexpr int64_t kIndexMax = std::numeric_limits<int32_t>::max() - 4096;

// A dimension of size 1 may have any stride, which counts for nothing then.
int64_t EffectiveStride(int64_t size, int64_t stride) { return size == 1 ? 0 : stride; }

// Whether rows of elements of `bytes` start on 16-byte boundaries.
bool Vectors(const void* data, std::initializer_list<int64_t> strides, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
  return std::all_of(strides.begin(), strides.end(), [bytes](int64_t s) { return s * bytes % 16 == 0; });
}

TensorView ViewOf(const void* data, int64_t tokens, int64_t heads, const Strides& strides,
                  int64_t page_stride, int32_t dim) {
  TensorView view;
  view.data = data;
  view.token_stride = EffectiveStride(tokens, strides.token);
  view.head_stride = EffectiveStride(heads, strides.head);
  view.page_stride = page_stride;
  view.dim = dim;
  view.vectors = Vectors(data, {view.token_stride, view.head_stride, page_stride}, 2);
  return view;
}

void SetScoreModifiers(const Problem& p, bool partial, FlashProblem* f) {
  f->bias = p.bias;
  f->bias_is_fp32 = p.bias_is_fp32;
  f->bias_head_stride = EffectiveStride(p.q_heads, p.bias_strides.head);
  f->bias_row_stride = EffectiveStride(p.q_len, p.bias_strides.row);
  f->bias_key_stride = EffectiveStride(p.kv_len, p.bias_strides.key);
  f->mask = p.mask;
  f->mask_head_stride = EffectiveStride(p.q_heads, p.mask_strides.head);
  f->mask_row_stride = EffectiveStride(p.q_len, p.mask_strides.row);
  f->mask_key_stride = EffectiveStride(p.kv_len, p.mask_strides.key);
  f->alibi_slopes = p.alibi_slopes;
  f->sinks = partial ? nullptr : p.sinks;
  f->scale = p.scale;
  f->softcap = p.softcap;
  f->sign = p.scale > 0 ? 1.0f : p.scale < 0 ? -1.0f : 0.0f;
  f->unit = HasFeatures(p) || p.scale == 0 ? 1.0f : std::abs(p.scale);
  f->diagonal = p.causal == Causal::kTopLeft ? 0 : p.kv_len - p.q_len;
  // Windows may be near 2^63; no key is further away than all lengths together.
  const int64_t furthest = p.q_len + p.kv_len;
  f->window_left = std::min(p.window_left, furthest);
  f->window_right = p.causal != Causal::kNone ? 0 : std::min(p.window_right, furthest);
}

FlashProblem MakeFlashProblem(const Launch& launch, const Problem& p, const Cut& cut) {
  FlashProblem f = {};
  const bool paged = p.pages.table != nullptr;
  f.q = ViewOf(p.q, p.q_len, p.q_heads, p.q_strides, 0, launch.head_dim);
  // Inside a page there are several tokens, however few are used.
  const int64_t tokens = paged ? p.pages.tokens : p.kv_len;
  f.k = ViewOf(p.k, tokens, p.kv_heads, p.k_strides, paged ? p.pages.k_page_stride : 0, launch.head_dim);
  f.v = ViewOf(p.v, tokens, p.kv_heads, p.v_strides, paged ? p.pages.v_page_stride : 0, launch.v_head_dim);
  f.page_table = p.pages.table;
  f.page_shift = paged ? std::countr_zero(static_cast<uint32_t>(p.pages.tokens)) : 0;
  f.out = p.out;
  f.out_token_stride = EffectiveStride(p.q_len, p.out_strides.token);
  f.out_head_stride = EffectiveStride(p.q_heads, p.out_strides.head);
  f.out_vectors =
      Vectors(p.out, {f.out_token_stride, f.out_head_stride}, launch.partial ? 4 : SizeOf(launch.dtype));
  f.lse = p.lse;
  f.lse_head_stride = p.lse_head_stride;
  SetScoreModifiers(p, launch.partial, &f);
  f.q_len = static_cast<int32_t>(p.q_len);
  f.kv_len = static_cast<int32_t>(p.kv_len);
  f.group = p.q_heads / p.kv_heads;
  f.kv_heads = p.kv_heads;
  f.row_tiles = static_cast<int32_t>(cut.row_tiles);
  f.splits = static_cast<int32_t>(cut.splits);
  f.split_keys = static_cast<int32_t>(cut.split_keys);
  f.keys_begin = static_cast<int32_t>(cut.keys_begin);
  return f;
}

// The problems of a launch that run in one grid, in the kernels' parameters or the workspace.
struct Grid {
  FlashArgs args;
  int64_t ctas = 0;
  int64_t combine_ctas = 0;
  // Where args.groups and the two lists of first CTAs are made, and their bytes; null and 0: in args.
  char* host_list = nullptr;
  char* device_list = nullptr;
  int64_t list_bytes = 0;
};

// With an empty workspace, only counts what is needed.
Grid MakeGrid(Path path, const Launch& launch, std::span<const Problem* const> problems, bool empty_workspace,
              Carver& carver) {
  const std::vector<Group> groups = GroupProblems(problems);
  Grid grid;
  FlashArgs& args = grid.args;
  args.count = static_cast<int32_t>(groups.size());
  args.partial = launch.partial;
  args.groups = nullptr;
  args.first_cta = args.first_combine_cta = nullptr;
  FlashGroup* list = args.inline_groups;
  int32_t* first_cta = args.inline_first_cta;
  int32_t* first_combine_cta = args.inline_first_combine_cta;
  if (groups.size() > kInlineGroups) {
    const int64_t group_bytes = args.count * static_cast<int64_t>(sizeof(FlashGroup));
    const int64_t index_bytes = args.count * int64_t{4};
    grid.list_bytes = group_bytes + 2 * index_bytes;
    grid.device_list = static_cast<char*>(carver.Device(grid.list_bytes));
    grid.host_list = static_cast<char*>(carver.Host(grid.list_bytes));
    list = reinterpret_cast<FlashGroup*>(grid.host_list);
    first_cta = reinterpret_cast<int32_t*>(grid.host_list + group_bytes);
    first_combine_cta = first_cta + args.count;
    args.groups = reinterpret_cast<const FlashGroup*>(grid.device_list);
    args.first_cta = reinterpret_cast<const int32_t*>(grid.device_list + group_bytes);
    args.first_combine_cta = args.first_cta + args.count;
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const Problem& p = *groups[i].first;
    const int64_t count = groups[i].count;
    const Cut cut = CutProblem(path, launch, p);
    float* split_out = nullptr;
    SplitState* split_states = nullptr;
    const int64_t rows = p.q_len * p.q_heads;
    if (cut.splits > 1) {
      const int64_t states = count * cut.splits * rows;
      split_out = static_cast<float*>(carver.Device(states * launch.v_head_dim * int64_t{4}));
      split_states =
          static_cast<SplitState*>(carver.Device(states * static_cast<int64_t>(sizeof(SplitState))));
    }
    if (!empty_workspace) {
      FlashProblem first = MakeFlashProblem(launch, p, cut);
      first.split_out = split_out;
      first.split_states = split_states;
      list[i] = {first, groups[i].distances, count};
      first_cta[i] = static_cast<int32_t>(std::min(grid.ctas, kBlocksMax));
      first_combine_cta[i] = static_cast<int32_t>(std::min(grid.combine_ctas, kBlocksMax));
    }
    grid.ctas += count * cut.row_tiles * cut.splits * p.kv_heads;
    if (cut.splits > 1) grid.combine_ctas += count * rows;
  }
  return grid;
}

// The problems with and without score modifiers: each kind is a grid of its own.
std::vector<const Problem*> Select(const Launch& launch, bool features) {
  std::vector<const Problem*> selected;
  for (const Problem& p : launch.problems) {
    if (HasFeatures(p) == features) selected.push_back(&p);
  }
  return selected;
}

using LaunchFunction = cudaError_t (*)(const FlashArgs&, bool, int, cudaStream_t);

template <typename T>
LaunchFunction FunctionOf(Path path, int head_dim_class) {
  const bool decode = path == Path::kDecode;
  switch (head_dim_class) {
    case 64:
      return decode ? LaunchDecode<T, 64> : LaunchPrefill<T, 64>;
    case 96:
      return decode ? LaunchDecode<T, 96> : LaunchPrefill<T, 96>;
    case 128:
      return decode ? LaunchDecode<T, 128> : LaunchPrefill<T, 128>;
    case 192:
      return decode ? LaunchDecode<T, 192> : LaunchPrefill<T, 192>;
    default:
      return decode ? LaunchDecode<T, 256> : LaunchPrefill<T, 256>;
  }
}

absl::Status Combine(const Launch& launch, const Grid& grid, cudaStream_t stream) {
  const int ctas = static_cast<int>(grid.combine_ctas);
  if (launch.partial) return LaunchCombine<float>(grid.args, ctas, stream);
  if (launch.dtype == DataType::kFp16) return LaunchCombine<__half>(grid.args, ctas, stream);
  return LaunchCombine<__nv_bfloat16>(grid.args, ctas, stream);
}

absl::Status EnqueueGrid(Path path, const Launch& launch, bool features, Carver& carver,
                         cudaStream_t stream) {
  const std::vector<const Problem*> problems = Select(launch, features);
  if (problems.empty()) return absl::OkStatus();
  const Grid grid = MakeGrid(path, launch, problems, /*empty_workspace=*/false, carver);
  if (std::max(grid.ctas, grid.combine_ctas) > kBlocksMax) {
    return absl::InvalidArgumentError(absl::StrCat("the launch needs ", grid.ctas, " thread blocks; at most ",
                                                   kBlocksMax, " run in one launch"));
  }
  if (grid.list_bytes > 0) {
    if (auto s = EnqueueListCopy(grid.device_list, grid.host_list, grid.list_bytes, stream); !s.ok())
      return s;
  }
  const int head_dim = HeadDimClass(launch.head_dim, launch.v_head_dim);
  const LaunchFunction run = launch.dtype == DataType::kFp16 ? FunctionOf<__half>(path, head_dim)
                                                             : FunctionOf<__nv_bfloat16>(path, head_dim);
  ATTEND_CUDA_RETURN_IF_ERROR(run(grid.args, features, static_cast<int>(grid.ctas), stream));
  return grid.combine_ctas == 0 ? absl::OkStatus() : Combine(launch, grid, stream);
}

template <Path kPath>
absl::Status EnqueuePath(const Launch& launch, const DeviceProperties&, const Workspace& workspace,
                         Stream stream) {
  Carver carver(workspace);
  for (const bool features : {false, true}) {
    if (auto s = EnqueueGrid(kPath, launch, features, carver, static_cast<cudaStream_t>(stream)); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

template <Path kPath>
WorkspaceNeed NeedOf(const Launch& launch, const DeviceProperties&) {
  Carver carver{Workspace{}};
  for (const bool features : {false, true}) {
    MakeGrid(kPath, launch, Select(launch, features), /*empty_workspace=*/true, carver);
  }
  return carver.need();
}

template <Path kPath>
TileShape TileOfLaunch(const Launch& launch, const DeviceProperties&) {
  const bool features = std::any_of(launch.problems.begin(), launch.problems.end(), HasFeatures);
  return TileOf(kPath, HeadDimClass(launch.head_dim, launch.v_head_dim), features);
}

bool SupportsAny(const Launch& launch, const Problem& p, const DeviceProperties& device) {
  if (launch.kernel != Kernel::kFlash || launch.dtype == DataType::kFp32) return false;
  if (device.compute_capability < 80 || device.shared_memory_per_block_max < kSharedBytesMax) return false;
  return p.kv_len <= kIndexMax && PackedRows(p) <= kIndexMax;
}

bool SupportsDecode(const Launch& launch, const Problem& p, const DeviceProperties& device) {
  return SupportsAny(launch, p, device) && PackedRows(p) <= kDecodeRowsMax;
}

// Hopper's own kernel is faster where it can fill the chip: it neither packs heads nor splits keys.
bool PrefersPrefill(const Launch& launch, const Problem& p, const DeviceProperties& device) {
  if (device.compute_capability / 10 != 9) return true;
  return CutProblem(Path::kPrefill, launch, p).splits > 2;
}

}  // namespace

constexpr Variant kDecodeVariant = {
    .name = "flash_decode",
    .supported =
        "FLASH fp16 and bf16, at most 32 rows of query tokens x query heads per KV head, sm_80 and later",
    .supports = SupportsDecode,
    .prefers = nullptr,
    .workspace_need = NeedOf<Path::kDecode>,
    .tile = TileOfLaunch<Path::kDecode>,
    .enqueue = EnqueuePath<Path::kDecode>,
};

constexpr Variant kPrefillVariant = {
    .name = "flash_sm80",
    .supported = "FLASH fp16 and bf16, sm_80 and later",
    .supports = SupportsAny,
    .prefers = PrefersPrefill,
    .workspace_need = NeedOf<Path::kPrefill>,
    .tile = TileOfLaunch<Path::kPrefill>,
    .enqueue = EnqueuePath<Path::kPrefill>,
};

}  // namespace attend::cuda::flash
