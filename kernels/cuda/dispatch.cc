#include "kernels/cuda/dispatch.h"

#include "absl/strings/str_cat.h"

namespace attend::cuda {
namespace {

absl::Status Unsupported(const Launch& launch, const DeviceProperties& device,
                         std::span<const Variant> variants, absl::string_view forced) {
  std::string message =
      absl::StrCat("no CUDA kernel runs ", Name(launch.kernel), " ", Name(launch.dtype), " with head_dim ",
                   launch.head_dim, ", v_head_dim ", launch.v_head_dim, " on compute capability ",
                   device.compute_capability / 10, ".", device.compute_capability % 10);
  if (!forced.empty()) absl::StrAppend(&message, " with the variant ", forced);
  absl::StrAppend(&message, "; supported:");
  for (const Variant& v : variants) absl::StrAppend(&message, " ", v.name, " (", v.supported, ");");
  message.pop_back();
  return absl::UnimplementedError(message);
}

}  // namespace

absl::StatusOr<const Variant*> Choose(const Launch& launch, const Problem& problem,
                                      const DeviceProperties& device, std::span<const Variant> variants,
                                      absl::string_view forced) {
  const Variant* fallback = nullptr;
  for (const Variant& v : variants) {
    if (!forced.empty() && v.name != forced) continue;
    if (!v.supports(launch, problem, device)) continue;
    if (v.prefers == nullptr || v.prefers(launch, problem, device)) return &v;
    if (fallback == nullptr) fallback = &v;
  }
  if (fallback != nullptr) return fallback;
  return Unsupported(launch, device, variants, forced);
}

Launch SubLaunch::Of(const Launch& whole) const {
  Launch launch = whole;
  launch.problems = problems;
  return launch;
}

absl::StatusOr<std::vector<SubLaunch>> Partition(const Launch& launch, const DeviceProperties& device,
                                                 std::span<const Variant> variants,
                                                 absl::string_view forced) {
  std::vector<SubLaunch> by_variant(variants.size());
  for (const Problem& p : launch.problems) {
    if (p.q_len == 0 || p.kv_len == 0) continue;
    absl::StatusOr<const Variant*> variant = Choose(launch, p, device, variants, forced);
    if (!variant.ok()) return variant.status();
    SubLaunch& sub = by_variant[*variant - variants.data()];
    sub.variant = *variant;
    sub.problems.push_back(p);
  }
  std::erase_if(by_variant, [](const SubLaunch& s) { return s.variant == nullptr; });
  return by_variant;
}

}  // namespace attend::cuda
