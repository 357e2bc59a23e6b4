#include "kernels/cuda/cuda_attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/common.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/problem_list.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda {
namespace {

bool Empty(const Problem& p) { return p.q_len == 0 || p.kv_len == 0; }

// Weights of chosen rows are formed from lse: problems whose caller wants no lse get room for one.
bool NeedsLse(const Problem& p) { return WantsWeightRows(p) && p.lse == nullptr && !Empty(p); }

// A launch as it will run.
struct Plan {
  std::vector<Problem> problems;  // the launch's, with every lse that is needed
  std::vector<SubLaunch> subs;
  std::vector<WorkspaceNeed> needs;  // of subs
  bool fill = false;
  bool weight_rows = false;
};

absl::Status MakePlan(const Launch& launch, const DeviceProperties& device, absl::string_view forced,
                      Carver& carver, Plan* plan) {
  if (auto s = CheckLaunch(launch); !s.ok()) return s;
  plan->problems.assign(launch.problems.begin(), launch.problems.end());
  for (Problem& p : plan->problems) {
    plan->fill |= NeedsFill(p);
    plan->weight_rows |= WantsWeightRows(p);
    if (!NeedsLse(p)) continue;
    p.lse = static_cast<float*>(carver.Device(p.q_heads * p.q_len * int64_t{4}));
    p.lse_head_stride = p.q_len;
  }
  Launch prepared = launch;
  prepared.problems = plan->problems;
  absl::StatusOr<std::vector<SubLaunch>> subs = Partition(prepared, device, Variants(), forced);
  if (!subs.ok()) return subs.status();
  plan->subs = *std::move(subs);
  for (const SubLaunch& sub : plan->subs) {
    plan->needs.push_back(sub.variant->workspace_need(sub.Of(launch), device));
  }
  return absl::OkStatus();
}

// What the plan takes in all; carver: as MakePlan has left it.
WorkspaceNeed NeedOf(const Plan& plan, Carver carver) {
  const int64_t list_bytes = ListBytes(plan.problems.size());
  for (const bool needed : {plan.fill, plan.weight_rows}) {
    if (!needed) continue;
    carver.Device(list_bytes);
    carver.Host(list_bytes);
  }
  for (const WorkspaceNeed& need : plan.needs) {
    carver.Device(need.device_bytes);
    carver.Host(need.host_bytes);
  }
  return carver.need();
}

}  // namespace

absl::Status QueryDevice(int ordinal, DeviceProperties* properties) {
  int major = 0, minor = 0;
  ATTEND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  ATTEND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
  properties->compute_capability = 10 * major + minor;
  ATTEND_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&properties->multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
  ATTEND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&properties->shared_memory_per_block_max,
                                                     cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
  return absl::OkStatus();
}

absl::StatusOr<WorkspaceNeed> WorkspaceNeedForced(const Launch& launch, const DeviceProperties& device,
                                                  absl::string_view forced) {
  Carver carver{Workspace{}};
  Plan plan;
  if (auto s = MakePlan(launch, device, forced, carver, &plan); !s.ok()) return s;
  return NeedOf(plan, carver);
}

absl::Status EnqueueForced(const Launch& launch, const DeviceProperties& device, absl::string_view forced,
                           const Workspace& workspace, Stream stream) {
  Carver carver(workspace);
  Plan plan;
  if (auto s = MakePlan(launch, device, forced, carver, &plan); !s.ok()) return s;
  const WorkspaceNeed need = NeedOf(plan, carver);
  if (workspace.device_bytes < need.device_bytes || workspace.host_bytes < need.host_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("workspace holds ", workspace.device_bytes, " device and ",
                                                   workspace.host_bytes, " host bytes; the launch needs ",
                                                   need.device_bytes, " and ", need.host_bytes));
  }
  Launch prepared = launch;
  prepared.problems = plan.problems;
  if (plan.fill) {
    if (auto s = EnqueueFill(prepared, carver, stream); !s.ok()) return s;
  }
  for (size_t i = 0; i < plan.subs.size(); ++i) {
    const SubLaunch& sub = plan.subs[i];
    const WorkspaceNeed& piece = plan.needs[i];
    const Workspace own = {.device = carver.Device(piece.device_bytes),
                           .device_bytes = piece.device_bytes,
                           .host = carver.Host(piece.host_bytes),
                           .host_bytes = piece.host_bytes};
    if (auto s = sub.variant->enqueue(sub.Of(launch), device, own, stream); !s.ok()) return s;
  }
  if (plan.weight_rows) return EnqueueWeightRows(prepared, carver, stream);
  return absl::OkStatus();
}

absl::StatusOr<WorkspaceNeed> WorkspaceNeedOf(const Launch& launch, const DeviceProperties& device) {
  return WorkspaceNeedForced(launch, device, "");
}

TileShape FlashTile(const Launch& launch, const DeviceProperties& device) {
  for (const Problem& p : launch.problems) {
    const absl::StatusOr<const Variant*> variant = Choose(launch, p, device, Variants(), "");
    if (variant.ok()) return (*variant)->tile(launch, device);
  }
  return TileShape{};
}

absl::Status Enqueue(const Launch& launch, const DeviceProperties& device, const Workspace& workspace,
                     Stream stream) {
  return EnqueueForced(launch, device, "", workspace, stream);
}

}  // namespace attend::cuda
