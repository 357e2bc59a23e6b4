#include "kernels/cuda/flash/sm90/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cuda/flash/sm90/tiles.h"

namespace attend::cuda::sm90 {
namespace {

// Item numbers are 32-bit; a launch stops well before.
constexpr int64_t kItemsMax = int64_t{1} << 30;
// What K and V of a section may take of the L2 cache: it has 50 MB, in two halves that each keep a copy of
// what both use.
constexpr int64_t kSectionBytes = int64_t{16} << 20;

bool IsModified(const Problem& p) {
  // The smallest positive scale that a masked score of -inf survives; smaller ones are as good as 0.
  constexpr float kScaleMin = 1e-30f;
  return p.softcap > 0.0f || p.alibi_slopes != nullptr || !(p.scale >= kScaleMin);
}

int64_t Distance(const void* from, const void* to) {
  return static_cast<const std::byte*>(to) - static_cast<const std::byte*>(from);
}

bool SameStrides(const Strides& a, const Strides& b) { return a.token == b.token && a.head == b.head; }

bool SameShape(const Problem& a, const Problem& b) {
  return a.q_len == b.q_len && a.kv_len == b.kv_len && a.q_heads == b.q_heads && a.kv_heads == b.kv_heads &&
         SameStrides(a.q_strides, b.q_strides) && SameStrides(a.k_strides, b.k_strides) &&
         SameStrides(a.v_strides, b.v_strides) && SameStrides(a.out_strides, b.out_strides) &&
         (a.lse == nullptr) == (b.lse == nullptr) && a.lse_head_stride == b.lse_head_stride &&
         a.scale == b.scale && a.softcap == b.softcap && a.causal == b.causal &&
         a.window_left == b.window_left && a.window_right == b.window_right &&
         (a.alibi_slopes == nullptr) == (b.alibi_slopes == nullptr) &&
         (a.sinks == nullptr) == (b.sinks == nullptr);
}

// Strides of a tensor map are positive multiples of 16 below 2^40.
bool IsMapStride(int64_t bytes) { return bytes > 0 && bytes % 16 == 0 && bytes < int64_t{1} << 40; }

int64_t OptionalDistance(const void* from, const void* to) {
  return from == nullptr ? 0 : Distance(from, to);
}

// Takes the problem into the batch where it fits: as its second, which sets the distances, or a later one.
bool Extend(ProblemBatch& batch, const Problem& problem, int rows) {
  const Problem& first = *batch.first;
  if (!SameShape(first, problem)) return false;
  ProblemBatch next = batch;
  ++next.count;
  if (next.items(rows) > kItemsMax) return false;
  next.q_bytes = Distance(first.q, problem.q) / batch.count;
  next.k_bytes = Distance(first.k, problem.k) / batch.count;
  next.v_bytes = Distance(first.v, problem.v) / batch.count;
  next.out_bytes = Distance(first.out, problem.out) / batch.count;
  next.lse_bytes = OptionalDistance(first.lse, problem.lse) / batch.count;
  next.sinks_bytes = OptionalDistance(first.sinks, problem.sinks) / batch.count;
  next.alibi_bytes = OptionalDistance(first.alibi_slopes, problem.alibi_slopes) / batch.count;
  if (batch.count == 1) {
    if (!IsMapStride(next.q_bytes) || !IsMapStride(next.k_bytes) || !IsMapStride(next.v_bytes)) return false;
    if (next.out_bytes % 16 != 0) return false;
  } else {
    if (next.q_bytes != batch.q_bytes || next.k_bytes != batch.k_bytes || next.v_bytes != batch.v_bytes ||
        next.out_bytes != batch.out_bytes || next.lse_bytes != batch.lse_bytes ||
        next.sinks_bytes != batch.sinks_bytes || next.alibi_bytes != batch.alibi_bytes) {
      return false;
    }
  }
  // The division above is exact where the distances are equal.
  const auto exact = [&](int64_t bytes, const void* from, const void* to) {
    return from == nullptr || bytes * batch.count == Distance(from, to);
  };
  if (!exact(next.q_bytes, first.q, problem.q) || !exact(next.k_bytes, first.k, problem.k) ||
      !exact(next.v_bytes, first.v, problem.v) || !exact(next.out_bytes, first.out, problem.out) ||
      !exact(next.lse_bytes, first.lse, problem.lse) ||
      !exact(next.sinks_bytes, first.sinks, problem.sinks) ||
      !exact(next.alibi_bytes, first.alibi_slopes, problem.alibi_slopes)) {
    return false;
  }
  batch = next;
  return true;
}

// Longest work items first: they are dealt out in this order.
void SortBatches(std::vector<ProblemBatch>& batches) {
  std::stable_sort(batches.begin(), batches.end(), [](const ProblemBatch& a, const ProblemBatch& b) {
    return a.first->kv_len > b.first->kv_len;
  });
}

// Whether 64 rows an item are faster than the rows of the other tiles, as measured.

// Head_dim 64, against 192 rows: where the last of the large tiles would be mostly empty, and in short
// sequences of which a problem has few items.
bool HasFewRows64(const Problem& p) {
  constexpr int64_t kFewRows = 256;
  constexpr int64_t kShort = 1024;
  constexpr int64_t kFewItems = 64;
  if (p.q_len <= kFewRows) return true;
  if (std::max(p.q_len, p.kv_len) > kShort) return false;
  return p.q_heads * ((p.q_len + 63) / 64) <= kFewItems;
}

// Head_dim 128, against 128 rows: where the last of the large tiles would be half empty, or a problem has few
// items. Only with so many keys that a problem is no slower for it, alone or (but for 3 %) in a crowd: each
// tile of rows reads all keys once more, and few columns walk them slowly.
bool HasFewRows128(const Problem& p) {
  switch ((p.q_len + 63) / 64) {
    case 1:
      return p.kv_len <= 2048;
    case 2:
      return p.kv_len <= 128 && p.q_heads <= 8;
    case 3:
      return p.kv_len <= 256;
    default:
      return false;
  }
}

}  // namespace

bool IsMasked(const Problem& p) {
  const int64_t offset = p.causal == Causal::kTopLeft ? 0 : p.kv_len - p.q_len;
  const int64_t right = p.causal != Causal::kNone ? 0 : p.window_right;
  // The first row sees least to the right, the last least to the left.
  if (right != kUnbounded && right < p.kv_len - 1 - offset) return true;
  return p.window_left != kUnbounded && offset + p.q_len - 1 > p.window_left;
}

TileKind KindOf(const Launch& launch, const Problem& p) {
  if (IsModified(p)) return TileKind::kModified;
  const int head_dim = PaddedHeadDim(std::max(launch.head_dim, launch.v_head_dim));
  if (head_dim == 64 && HasFewRows64(p)) return TileKind::kFew;
  if (head_dim == 128 && HasFewRows128(p)) return TileKind::kFew;
  if (IsMasked(p)) return TileKind::kNarrow;
  const int narrow = TileOf(head_dim, TileKind::kNarrow).keys;
  const int wide = TileOf(head_dim, TileKind::kWide).keys;
  // Wide tiles are worth up to 4 % of keys computed in vain.
  return wide != narrow && Covered(p.kv_len, wide) * 100 <= Covered(p.kv_len, narrow) * 104
             ? TileKind::kWide
             : TileKind::kNarrow;
}

Tile TileOf(const Launch& launch, const Problem& p) {
  return TileOf(PaddedHeadDim(std::max(launch.head_dim, launch.v_head_dim)), KindOf(launch, p));
}

int32_t SectionHeads(const Launch& launch, const Problem& p, int32_t heads) {
  if (!IsMasked(p)) return 1;
  const int64_t kv_bytes = p.kv_len * (launch.head_dim + launch.v_head_dim) * SizeOf(launch.dtype);
  const int64_t kv_heads = std::max<int64_t>(1, kSectionBytes / kv_bytes);
  return static_cast<int32_t>(std::min<int64_t>(heads, kv_heads * (p.q_heads / p.kv_heads)));
}

std::vector<KernelLaunch> PlanLaunches(const Launch& launch) {
  std::vector<KernelLaunch> open;  // at most one per kernel
  std::vector<KernelLaunch> plan;
  for (const Problem& p : launch.problems) {
    const TileKind kind = KindOf(launch, p);
    const Tile tile = TileOf(launch, p);
    auto at = std::find_if(open.begin(), open.end(), [&](const KernelLaunch& l) { return l.kind == kind; });
    if (at == open.end()) {
      open.push_back({.kind = kind, .tile = tile, .items = 0, .batches = {}});
      at = open.end() - 1;
    }
    const ProblemBatch single = {.first = &p};
    const int64_t items = single.items(tile.rows());
    if (at->items + items > kItemsMax) {
      plan.push_back(*at);
      at->batches.clear();
      at->items = 0;
    }
    if (at->batches.empty() || !Extend(at->batches.back(), p, tile.rows())) at->batches.push_back(single);
    at->items += items;
  }
  plan.insert(plan.end(), open.begin(), open.end());
  for (KernelLaunch& l : plan) SortBatches(l.batches);
  return plan;
}

}  // namespace attend::cuda::sm90
