// ONLINE: the maximum and the denominator in one read.
//
//   1. scores = q·k * scale, masked                                    written
//   2. for each tile of keys: m' = max(m, max(scores)),
//      d = d * exp(m - m') + sum(exp(scores - m')), m = m'             read
//   3. weights = exp(score - m) / d, formed and used at once: out += weights · v    read
//
// One write and two reads of the matrix of scores, where NAIVE makes eight passes. The correction of d by
// exp(m - m') is what FLASH applies to the running output as well, and so needs no matrix at all.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/online.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/score_matrix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
// The kernels share names for their passes: without internal linkage the linker would mix them.
namespace {

template <int kVectors>
HWY_ATTR void DenominatorPass(const ScoreTile& t) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats m[kVectors], d[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    m[v] = hn::Set(df, kMasked);
    d[v] = hn::Zero(df);
  }
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    const int64_t end = std::min<int64_t>(key + kKeysPerTile, t.keys);
    Floats max[kVectors], safe[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) max[v] = m[v];
    for (int64_t c = key; c < end; ++c) {
      for (int v = 0; v < kVectors; ++v)
        max[v] = hn::Max(max[v], hn::Load(df, t.scores + c * kLanes + v * kFloats));
    }
    for (int v = 0; v < kVectors; ++v) {
      safe[v] = SafeMax(max[v]);
      sum[v] = hn::Zero(df);
    }
    for (int64_t c = key; c < end; ++c) {
      for (int v = 0; v < kVectors; ++v) {
        const Floats s = hn::Load(df, t.scores + c * kLanes + v * kFloats);
        sum[v] = hn::Add(sum[v], Exp2(hn::Sub(s, safe[v])));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      d[v] = hn::MulAdd(d[v], Exp2(hn::Sub(m[v], safe[v])), sum[v]);
      m[v] = max[v];
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    hn::Store(m[v], df, t.max + v * kFloats);
    hn::Store(d[v], df, t.sum + v * kFloats);
  }
}

// The weights of count keys, from their scores; with kExact, kUnseen where a lane may not see.
template <int kVectors, bool kExact>
HWY_ATTR void FormWeights(const float* scores, int count, const float* max, const float* factors,
                          float* weights) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  for (int v = 0; v < kVectors; ++v) {
    const Floats safe = SafeMax(hn::Load(df, max + v * kFloats));
    const Floats factor = hn::Load(df, factors + v * kFloats);
    for (int c = 0; c < count; ++c) {
      const Floats s = hn::Load(df, scores + c * kLanes + v * kFloats);
      const Floats w = hn::Mul(Exp2(hn::Sub(s, safe)), factor);
      const Floats seen =
          kExact ? hn::IfThenElse(hn::Eq(s, hn::Set(df, kMasked)), hn::Set(df, kUnseen), w) : w;
      hn::Store(seen, df, weights + c * kLanes + v * kFloats);
    }
  }
}

template <int kVectors, bool kExact>
HWY_ATTR void ValuesPass(const Launch& launch, const Tile& tile, const ScoreTile& t,
                         const MatrixScratch& scratch) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  HWY_ALIGN float factors[kLanes];
  Normalisers(launch, tile, t, kLanes, factors);
  Floats one[kVectors];
  for (int v = 0; v < kVectors; ++v) one[v] = hn::Set(df, 1.0f);
  std::fill_n(scratch.o, kLanes * launch.v_head_dim, 0.0f);
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, t.keys - key));
    FormWeights<kVectors, kExact>(t.scores + key * kLanes, count, t.max, factors, scratch.s);
    const Rows values = LoadValues(launch, tile, key, count, scratch.v);
    WeightedSum<kVectors, kExact>(scratch.s, values, count, launch.v_head_dim, one, scratch.o);
    if (!kExact) WriteWeights(tile, key, count, kLanes, scratch.s);
  }
}

enum class Pass { kScores, kDenominator, kValues };

template <int kVectors>
HWY_ATTR void RunPass(Pass pass, const Launch& launch, const Tile& tile, const ScoreTile& t,
                      const MatrixScratch& scratch) {
  switch (pass) {
    case Pass::kScores:
      return ScoresPass<kVectors>(launch, tile, t, scratch);
    case Pass::kDenominator:
      return DenominatorPass<kVectors>(t);
    case Pass::kValues:
      ValuesPass<kVectors, false>(launch, tile, t, scratch);
      // NaN may have come from a value that a row does not see, as 0 * NaN.
      if (AnyNan(scratch.o, kVectors * kFloats * launch.v_head_dim)) {
        ValuesPass<kVectors, true>(launch, tile, t, scratch);
      }
      return StoreTile(launch, tile, kVectors * kFloats, {scratch.o, t.max, t.sum}, true, scratch.row);
  }
}

void Online(const Launch& launch, void* block, int64_t block_bytes, Parallel& parallel) {
  MatrixWorkspace workspace(launch, block, block_bytes, parallel.thread_count());
  const Units units(launch.problems, kTileLanes, [](const Problem&) { return true; });
  for (int64_t first = 0; first < units.count();) {
    const Round round = MakeRound(units, first, kTileLanes, workspace.score_floats);
    for (const Pass pass : {Pass::kScores, Pass::kDenominator, Pass::kValues}) {
      parallel.For(round.tiles(), [&](int64_t i, int thread) {
        const Tile tile = units.At(round.first + i);
        const ScoreTile t = MakeScoreTile(tile, workspace.scores + round.offsets[i]);
        WithVectors(tile, [&](auto vectors) {
          RunPass<vectors.value>(pass, launch, tile, t, workspace.scratch[thread]);
        });
      });
    }
    first += round.tiles();
  }
}

int64_t OnlineBytes(const Launch& launch, int thread_count) { return MatrixBytes(launch, thread_count); }

}  // namespace
}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(OnlineBytes);
HWY_EXPORT(Online);

int64_t OnlineWorkspaceBytes(const Launch& launch, int thread_count) {
  return HWY_DYNAMIC_DISPATCH(OnlineBytes)(launch, thread_count);
}
void RunOnline(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(Online)(launch, workspace, workspace_bytes, parallel);
}

}  // namespace attend::cpu
#endif
