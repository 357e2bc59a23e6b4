#include "kernels/cuda/flash/groups.h"

#include <cstddef>
#include <tuple>

namespace attend::cuda::flash {
namespace {

auto Fields(const Strides& s) { return std::tuple(s.token, s.head); }
auto Fields(const ScoreStrides& s) { return std::tuple(s.head, s.row, s.key); }

// Everything that the problems of a group share.
auto Fields(const Problem& p) {
  return std::tuple(p.q_len, p.kv_len, p.q_heads, p.kv_heads, Fields(p.q_strides), Fields(p.k_strides),
                    Fields(p.v_strides), Fields(p.out_strides), p.pages.table == nullptr, p.pages.tokens,
                    p.pages.k_page_stride, p.pages.v_page_stride, p.lse == nullptr, p.lse_head_stride,
                    p.scale, p.softcap, p.causal, p.window_left, p.window_right, p.bias, p.bias_is_fp32,
                    Fields(p.bias_strides), p.mask, Fields(p.mask_strides), p.alibi_slopes, p.sinks);
}

int64_t Distance(const void* from, const void* to) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
}

Distances DistancesOf(const Problem& from, const Problem& to) {
  return {Distance(from.q, to.q),     Distance(from.k, to.k),     Distance(from.v, to.v),
          Distance(from.out, to.out), Distance(from.lse, to.lse), Distance(from.pages.table, to.pages.table)};
}

bool Aligned(const Distances& d) { return (d.q | d.k | d.v | d.out) % 16 == 0; }

bool Equal(const Distances& a, const Distances& b) {
  return a.q == b.q && a.k == b.k && a.v == b.v && a.out == b.out && a.lse == b.lse &&
         a.page_table == b.page_table;
}

}  // namespace

std::vector<Group> GroupProblems(std::span<const Problem* const> problems) {
  std::vector<Group> groups;
  for (size_t i = 0; i < problems.size(); ++i) {
    const Problem& p = *problems[i];
    if (i > 0 && Fields(*groups.back().first) == Fields(p)) {
      Group& group = groups.back();
      const Distances distances = DistancesOf(*problems[i - 1], p);
      if (group.count == 1 ? Aligned(distances) : Equal(distances, group.distances)) {
        group.distances = distances;
        ++group.count;
        continue;
      }
    }
    groups.push_back({&p});
  }
  return groups;
}

}  // namespace attend::cuda::flash
