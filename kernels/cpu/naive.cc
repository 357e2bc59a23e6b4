// NAIVE: attention as its formula reads, pass by pass over a matrix of scores in memory.
//
//   1. scores = q·k * scale, masked     written
//   2. maximum of each row              read
//   3. exp(score - maximum)             read and written
//   4. sum of each row                  read
//   5. divided by the sum               read and written
//   6. out = weights · v                read
//
// Eight times the matrix is carried, O(q_len * kv_len), where the inputs are O(q_len + kv_len): the cost
// that ONLINE lowers and FLASH avoids. Each pass goes over as many tiles as the workspace holds before the
// next begins. It forms all weights, and can return them.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/naive.cc"
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
HWY_ATTR void MaxPass(const ScoreTile& t) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats max[kVectors];
  for (int v = 0; v < kVectors; ++v) max[v] = hn::Set(df, kMasked);
  for (int64_t c = 0; c < t.keys; ++c) {
    for (int v = 0; v < kVectors; ++v)
      max[v] = hn::Max(max[v], hn::Load(df, t.scores + c * kLanes + v * kFloats));
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(max[v], df, t.max + v * kFloats);
}

template <int kVectors>
HWY_ATTR void ExpPass(const ScoreTile& t) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats max[kVectors];
  for (int v = 0; v < kVectors; ++v) max[v] = SafeMax(hn::Load(df, t.max + v * kFloats));
  for (int64_t c = 0; c < t.keys; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* s = t.scores + c * kLanes + v * kFloats;
      hn::Store(Exp2(hn::Sub(hn::Load(df, s), max[v])), df, s);
    }
  }
}

// Sums by tiles of keys first: long chains of additions round more.
template <int kVectors>
HWY_ATTR void SumPass(const ScoreTile& t) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats total[kVectors];
  for (int v = 0; v < kVectors; ++v) total[v] = hn::Zero(df);
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    Floats sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(df);
    for (int64_t c = key; c < std::min(key + kKeysPerTile, t.keys); ++c) {
      for (int v = 0; v < kVectors; ++v)
        sum[v] = hn::Add(sum[v], hn::Load(df, t.scores + c * kLanes + v * kFloats));
    }
    for (int v = 0; v < kVectors; ++v) total[v] = hn::Add(total[v], sum[v]);
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(total[v], df, t.sum + v * kFloats);
}

// Divides by the sum, the sink's share included where there is one.
template <int kVectors>
HWY_ATTR void DividePass(const Launch& launch, const Tile& tile, const ScoreTile& t) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  HWY_ALIGN float factors[kLanes];
  Normalisers(launch, tile, t, kLanes, factors);
  Floats factor[kVectors];
  for (int v = 0; v < kVectors; ++v) factor[v] = hn::Load(df, factors + v * kFloats);
  for (int64_t c = 0; c < t.keys; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* s = t.scores + c * kLanes + v * kFloats;
      hn::Store(hn::Mul(hn::Load(df, s), factor[v]), df, s);
    }
  }
}

template <int kVectors>
HWY_ATTR void ValuesPass(const Launch& launch, const Tile& tile, const ScoreTile& t,
                         const MatrixScratch& scratch) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats one[kVectors];
  for (int v = 0; v < kVectors; ++v) one[v] = hn::Set(df, 1.0f);
  std::fill_n(scratch.o, kLanes * launch.v_head_dim, 0.0f);
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, t.keys - key));
    const Rows values = LoadValues(launch, tile, key, count, scratch.v);
    WeightedSum<kVectors, false>(t.scores + key * kLanes, values, count, launch.v_head_dim, one, scratch.o);
  }
  WriteWeights(tile, 0, static_cast<int>(t.keys), kLanes, t.scores);
  if (!AnyNan(scratch.o, kLanes * launch.v_head_dim)) return;
  // A value that a row does not see may have been NaN: again, with what each row sees found anew.
  std::fill_n(scratch.o, kLanes * launch.v_head_dim, 0.0f);
  PackQueries(launch, tile, kLanes, scratch.q_t, scratch.row);
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, t.keys - key));
    Floats max[kVectors];
    FinalScores<kVectors>(launch, tile, scratch.q_t, key, count, scratch.k, scratch.s, scratch.added, max);
    for (size_t i = 0; i < count * kLanes; i += kFloats) {
      const auto unseen = hn::Eq(hn::Load(df, scratch.s + i), hn::Set(df, kMasked));
      const Floats weight = hn::Load(df, t.scores + key * kLanes + i);
      hn::Store(hn::IfThenElse(unseen, hn::Set(df, kUnseen), weight), df, scratch.s + i);
    }
    const Rows values = LoadValues(launch, tile, key, count, scratch.v);
    WeightedSum<kVectors, true>(scratch.s, values, count, launch.v_head_dim, one, scratch.o);
  }
}

enum class Pass { kScores, kMax, kExp, kSum, kDivide, kValues };

template <int kVectors>
HWY_ATTR void RunPass(Pass pass, const Launch& launch, const Tile& tile, const ScoreTile& t,
                      const MatrixScratch& scratch) {
  switch (pass) {
    case Pass::kScores:
      return ScoresPass<kVectors>(launch, tile, t, scratch);
    case Pass::kMax:
      return MaxPass<kVectors>(t);
    case Pass::kExp:
      return ExpPass<kVectors>(t);
    case Pass::kSum:
      return SumPass<kVectors>(t);
    case Pass::kDivide:
      return DividePass<kVectors>(launch, tile, t);
    case Pass::kValues:
      ValuesPass<kVectors>(launch, tile, t, scratch);
      return StoreTile(launch, tile, kVectors * kFloats, {scratch.o, t.max, t.sum}, true, scratch.row);
  }
}

void Naive(const Launch& launch, void* block, int64_t block_bytes, Parallel& parallel) {
  MatrixWorkspace workspace(launch, block, block_bytes, parallel.thread_count());
  const Units units(launch.problems, kTileLanes, [](const Problem&) { return true; });
  for (int64_t first = 0; first < units.count();) {
    const Round round = MakeRound(units, first, kTileLanes, workspace.score_floats);
    for (const Pass pass :
         {Pass::kScores, Pass::kMax, Pass::kExp, Pass::kSum, Pass::kDivide, Pass::kValues}) {
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

int64_t NaiveBytes(const Launch& launch, int thread_count) { return MatrixBytes(launch, thread_count); }

}  // namespace
}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(NaiveBytes);
HWY_EXPORT(Naive);

int64_t NaiveWorkspaceBytes(const Launch& launch, int thread_count) {
  return HWY_DYNAMIC_DISPATCH(NaiveBytes)(launch, thread_count);
}
void RunNaive(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(Naive)(launch, workspace, workspace_bytes, parallel);
}

}  // namespace attend::cpu
#endif
