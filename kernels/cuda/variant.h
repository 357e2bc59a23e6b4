// How a kernel variant plugs into dispatch. A variant is one family of kernels (say, FLASH with Hopper's
// tensor copies); dispatch picks one for each problem and hands it a launch of just those problems.
//
// To add one: declare its namespace's functions in a header of its own, name them in variants.cc. Its
// functions but Enqueue are pure host code, so that dispatch can be tested without a GPU.
#ifndef ATTEND_KERNELS_CUDA_VARIANT_H_
#define ATTEND_KERNELS_CUDA_VARIANT_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/attention.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/work.h"

namespace attend::cuda {

struct Variant {
  // Short and stable, such as "flash_sm90"; reported and used to force a variant.
  absl::string_view name;
  // The set that Supports accepts, in words, for the error of a launch that no variant takes.
  absl::string_view supported;

  // Whether it can run this problem of this launch on this device. Looks at launch.kernel, dtype,
  // head_dims, partial and at the problem, never at the rest of the launch (batch invariance).
  bool (*supports)(const Launch& launch, const Problem& problem, const DeviceProperties& device);
  // Whether, where it can, it should: the first variant of the table that says yes runs the problem, else
  // the first that supports it. Null: yes. Looks at the same things.
  bool (*prefers)(const Launch& launch, const Problem& problem, const DeviceProperties& device);

  // Scratch that enqueue needs for a launch whose problems it all supports.
  WorkspaceNeed (*workspace_need)(const Launch& launch, const DeviceProperties& device);
  // The tile that it walks.
  TileShape (*tile)(const Launch& launch, const DeviceProperties& device);

  // Enqueues the launch. The workspace has at least the bytes asked for, 256-byte aligned, and is this
  // launch's alone. The caller has checked the launch (CheckLaunch) and takes care of what is the same for
  // all variants: every problem here has q_len > 0 and kv_len > 0; rows behind q_len are not the
  // variant's; with chosen weight rows the variant only has to write lse (never null then), which the
  // weights are formed from afterwards. Returns Internal for a CUDA error.
  absl::Status (*enqueue)(const Launch& launch, const DeviceProperties& device, const Workspace& workspace,
                          Stream stream);
};

// All variants built in, in order of preference.
std::span<const Variant> Variants();

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_VARIANT_H_
