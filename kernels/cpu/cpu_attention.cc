#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/targets.h"
// After targets.h.
#include "hwy/highway.h"
#include "kernels/cpu/bf16_dot.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/plan.h"

namespace attend::cpu {
namespace {

bool AnyWeightRows(const Launch& launch) {
  return std::any_of(launch.problems.begin(), launch.problems.end(),
                     [](const Problem& p) { return p.weights != nullptr && p.weight_rows != nullptr; });
}

int64_t KernelBytes(const Launch& launch, int thread_count) {
  switch (launch.kernel) {
    case Kernel::kNaive:
      return NaiveWorkspaceBytes(launch, thread_count);
    case Kernel::kOnline:
      return OnlineWorkspaceBytes(launch, thread_count);
    default:
      return FlashWorkspaceBytes(launch, thread_count);
  }
}

// What padding holds: rows of out and lse behind q_len, rows and columns of weights behind the lengths. Where
// there is none, no head is looked at: a few bytes can ask for thousands of empty sequences with thousands of
// heads.
void FillPadding(const Launch& launch, const Problem& p) {
  const int64_t size = launch.partial ? 4 : SizeOf(launch.dtype);
  const int64_t padded_heads = p.q_len < p.q_len_padded ? p.q_heads : 0;
  for (int64_t h = 0; h < padded_heads; ++h) {
    for (int64_t i = p.q_len; i < p.q_len_padded; ++i) {
      char* out = static_cast<char*>(p.out) + (i * p.out_strides.token + h * p.out_strides.head) * size;
      std::fill_n(out, launch.v_head_dim * size, char{0});
      if (p.lse != nullptr) p.lse[h * p.lse_head_stride + i] = -std::numeric_limits<float>::infinity();
    }
  }
  if (p.weights == nullptr || p.kv_len_padded == 0) return;
  const int64_t rows = p.weight_rows == nullptr ? p.q_len_padded : p.weight_row_count;
  for (int64_t h = 0; h < p.q_heads; ++h) {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = p.weights + h * p.weights_head_stride + r * p.weights_row_stride;
      const bool there =
          p.weight_rows == nullptr ? r < p.q_len : p.weight_rows[r] >= 0 && p.weight_rows[r] < p.q_len;
      std::fill(row + (there ? p.kv_len : 0), row + p.kv_len_padded, 0.0f);
    }
  }
}

}  // namespace

int64_t WorkspaceBytes(const Launch& launch, int thread_count) {
  const int64_t bytes = KernelBytes(launch, thread_count);
  return AnyWeightRows(launch) ? std::max(bytes, WeightRowsWorkspaceBytes(launch, thread_count)) : bytes;
}

TileShape FlashTile(const Launch&) { return {LanesPerTile(), kKeysPerTile}; }

absl::Status Run(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel) {
  if (absl::Status s = CheckLaunch(launch); !s.ok()) return s;
  const int64_t needed = WorkspaceBytes(launch, parallel.thread_count());
  if (workspace_bytes < needed || workspace == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace has ", workspace_bytes, " bytes; this launch needs ", needed));
  }
  parallel.For(static_cast<int64_t>(launch.problems.size()),
               [&launch](int64_t i, int) { FillPadding(launch, launch.problems[i]); });
  switch (launch.kernel) {
    case Kernel::kNaive:
      RunNaive(launch, workspace, workspace_bytes, parallel);
      break;
    case Kernel::kOnline:
      RunOnline(launch, workspace, workspace_bytes, parallel);
      break;
    default:
      RunFlash(launch, workspace, parallel);
      break;
  }
  if (AnyWeightRows(launch)) RunWeightRows(launch, workspace, parallel);
  return absl::OkStatus();
}

std::string InstructionSet() {
  // Force the choice that the first dispatched call makes.
  LanesPerTile();
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  switch (supported & -supported) {
    case HWY_AVX3:
      return UsesBf16Dot() ? "AVX-512 with BF16" : "AVX-512";
    case HWY_AVX2:
      return "AVX2";
    case HWY_SSE4:
      return "SSE4.1";
    default:
      return hwy::TargetName(supported & -supported);
  }
}

}  // namespace attend::cpu
