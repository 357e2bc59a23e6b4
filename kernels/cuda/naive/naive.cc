#include "kernels/cuda/naive/naive.h"

#include <algorithm>
#include <span>

#include "kernels/cuda/flash/fp32/flash_fp32.h"
#include "kernels/cuda/naive/matrices.h"
#include "kernels/cuda/problem_list.h"

namespace attend::cuda::naive {
namespace {

// Both carve the matrices, the lists of their three kinds of kernels, and in fp32 the split k and v.
int64_t Lists(const Launch& launch) { return launch.dtype == DataType::kFp32 ? 4 : 3; }
WorkspaceNeed NeedOf(const Launch& launch, const DeviceProperties&) {
  Carver carver{Workspace{}};
  Open(launch, carver);
  const int64_t lists = Lists(launch) * AlignWorkspace(WorkList::Bytes(launch));
  carver.Device(lists);
  carver.Host(lists);
  if (launch.dtype == DataType::kFp32) carver.Device(flash_fp32::SplitBytes(launch));
  return carver.need();
}
TileShape Tile(const Launch&, const DeviceProperties&) { return TileShape{kOutRows, 64}; }

absl::Status Run(const Launch& launch, std::span<const Pass> passes, bool form_weights,
                 const Workspace& workspace, Stream stream) {
  Carver carver(workspace);
  Matrices m = Open(launch, carver);
  if (launch.dtype == DataType::kFp32) {
    if (auto s = flash_fp32::EnqueueSplit(launch, carver, stream, &m.tiles); !s.ok()) return s;
  }
  WorkList work;
  if (auto s = MakeWorkList(launch, Walk::kScoreStrips, carver, stream, &work); !s.ok()) return s;
  if (auto s = EnqueueScores(launch, work, m, stream); !s.ok()) return s;
  if (auto s = MakeWorkList(launch, Walk::kRowGroups, carver, stream, &work); !s.ok()) return s;
  for (const Pass pass : passes) {
    if (auto s = EnqueuePass(launch, pass, work, m, stream); !s.ok()) return s;
  }
  if (auto s = MakeWorkList(launch, Walk::kOutTiles, carver, stream, &work); !s.ok()) return s;
  return EnqueueWeightedSum(launch, form_weights, work, m, stream);
}

bool IsNaive(const Launch& launch, const Problem&, const DeviceProperties& device) {
  return launch.kernel == Kernel::kNaive && device.compute_capability >= 80;
}
absl::Status EnqueueNaive(const Launch& launch, const DeviceProperties&, const Workspace& workspace,
                          Stream stream) {
  constexpr Pass kPasses[] = {Pass::kMax, Pass::kExp, Pass::kSum, Pass::kDivide};
  constexpr Pass kShort[] = {Pass::kShort};
  const bool all_short = std::all_of(launch.problems.begin(), launch.problems.end(),
                                     [](const Problem& p) { return ScoreStride(p) <= kShortRow; });
  const std::span<const Pass> passes = all_short ? std::span<const Pass>(kShort) : kPasses;
  return Run(launch, passes, /*form_weights=*/false, workspace, stream);
}

bool IsOnline(const Launch& launch, const Problem&, const DeviceProperties& device) {
  return launch.kernel == Kernel::kOnline && device.compute_capability >= 80;
}
absl::Status EnqueueOnline(const Launch& launch, const DeviceProperties&, const Workspace& workspace,
                           Stream stream) {
  constexpr Pass kPasses[] = {Pass::kStats};
  return Run(launch, kPasses, /*form_weights=*/true, workspace, stream);
}

}  // namespace

const Variant kNaiveVariant = {
    .name = "naive",
    .supported = "NAIVE: every dtype and head_dim, compute capability 8.0 and later",
    .supports = IsNaive,
    .prefers = nullptr,
    .workspace_need = NeedOf,
    .tile = Tile,
    .enqueue = EnqueueNaive,
};

const Variant kOnlineVariant = {
    .name = "online",
    .supported = "ONLINE: every dtype and head_dim, compute capability 8.0 and later",
    .supports = IsOnline,
    .prefers = nullptr,
    .workspace_need = NeedOf,
    .tile = Tile,
    .enqueue = EnqueueOnline,
};

}  // namespace attend::cuda::naive
