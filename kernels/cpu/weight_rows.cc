// Weights of chosen rows, for every kernel: q and k are read once for each row's maximum and denominator
// (as ONLINE does, but keeping no scores), and once more for the weights themselves.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weight_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
// The kernels share names for their passes: without internal linkage the linker would mix them.
namespace {

struct RowScratch {
  RowScratch(const Launch& launch, Carver& carver) {
    q_t = carver.Take<float>(launch.head_dim * kFloats);
    s = carver.Take<float>(kKeysPerTile * kFloats);
    added = carver.Take<float>(kKeysPerTile * kFloats);
    k = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * launch.head_dim);
    row = carver.Take<float>(launch.head_dim);
    max = carver.Take<float>(kFloats);
    sum = carver.Take<float>(kFloats);
  }
  float* q_t;
  float* s;
  float* added;
  float* k;
  float* row;
  float* max;
  float* sum;
};

int64_t RowBytes(const Launch& launch, int thread_count) {
  Carver carver(nullptr);
  for (int i = 0; i < thread_count; ++i) RowScratch(launch, carver);
  return carver.used();
}

HWY_NOINLINE HWY_ATTR void Denominators(const Launch& launch, const Tile& tile, const RowScratch& scratch) {
  const FloatTag df;
  Floats m = hn::Set(df, kMasked), d = hn::Zero(df);
  for (int64_t key = 0; key < tile.problem->kv_len; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, tile.problem->kv_len - key));
    Floats max, sum;
    FinalScores<1>(launch, tile, scratch.q_t, key, count, scratch.k, scratch.s, scratch.added, &max);
    max = hn::Max(m, max);
    ExpScores<1, false>(scratch.s, count, &max, &sum);
    d = hn::MulAdd(d, Exp2(hn::Sub(m, SafeMax(max))), sum);
    m = max;
  }
  hn::Store(m, df, scratch.max);
  hn::Store(d, df, scratch.sum);
}

// The weights of listed row r, for each lane's head.
HWY_NOINLINE HWY_ATTR void Weights(const Launch& launch, const Tile& tile, int64_t r,
                                   const RowScratch& scratch) {
  const FloatTag df;
  const Problem& p = *tile.problem;
  const Floats max = hn::Load(df, scratch.max);
  for (int64_t key = 0; key < p.kv_len; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, p.kv_len - key));
    Floats unused_max, unused_sum;
    FinalScores<1>(launch, tile, scratch.q_t, key, count, scratch.k, scratch.s, scratch.added, &unused_max);
    ExpScores<1, false>(scratch.s, count, &max, &unused_sum);
    for (int lane = 0; lane < tile.lanes; ++lane) {
      const float factor = EndLane(launch, tile, lane, {nullptr, scratch.max, scratch.sum}).factor;
      float* to = p.weights + tile.head[lane] * p.weights_head_stride + r * p.weights_row_stride + key;
      for (int c = 0; c < count; ++c) to[c] = scratch.s[c * kFloats + lane] * factor;
    }
  }
}

void WeightRows(const Launch& launch, void* block, Parallel& parallel) {
  Carver carver(block);
  std::vector<RowScratch> scratch;
  for (int i = 0; i < parallel.thread_count(); ++i) scratch.emplace_back(launch, carver);
  for (const Problem& p : launch.problems) {
    if (p.weights == nullptr || p.weight_rows == nullptr || p.kv_len == 0) continue;
    const int64_t tiles = (Group(p) + static_cast<int64_t>(kFloats) - 1) / static_cast<int64_t>(kFloats);
    parallel.For(p.weight_row_count * p.kv_heads * tiles, [&](int64_t i, int thread) {
      const int64_t r = i / tiles / p.kv_heads;
      if (p.weight_rows[r] < 0 || p.weight_rows[r] >= p.q_len) return;  // zeros, written with the padding
      const int64_t begin = i % tiles * static_cast<int64_t>(kFloats);
      const Tile tile =
          MakeRowTile(p, i / tiles % p.kv_heads, p.weight_rows[r], begin, static_cast<int>(kFloats));
      PackQueries(launch, tile, kFloats, scratch[thread].q_t, scratch[thread].row);
      Denominators(launch, tile, scratch[thread]);
      Weights(launch, tile, r, scratch[thread]);
    });
  }
}

}  // namespace
}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(RowBytes);
HWY_EXPORT(WeightRows);

int64_t WeightRowsWorkspaceBytes(const Launch& launch, int thread_count) {
  return HWY_DYNAMIC_DISPATCH(RowBytes)(launch, thread_count);
}
void RunWeightRows(const Launch& launch, void* workspace, Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(WeightRows)(launch, workspace, parallel);
}

}  // namespace attend::cpu
#endif
