// FLASH: q, k and v are read once, and no score outlives its tile.
//
// A tile of query rows stays in the cache with its running output o, maximum m and denominator l. Tiles of
// keys and values stream past it. For each: scores s, the new maximum m' = max(m, max(s)), the correction
// c = exp(m - m'), weights p = exp(s - m'), and
//
//   l = l * c + sum(p)        o = o * c + p·v        m = m'
//
// After the last key out = o / l. What is carried is q, k, v and out, however many scores there are.
//
// A thread walks several tiles of queries side by side over the same keys, which then come from memory once
// for all.
//
// Few queries against many keys (decoding) would leave threads idle: there the keys are split, each split
// keeps its own (o, m, l), and a second step folds them together with the same correction.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/flash.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/narrow-inl.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
// The kernels share names for their passes: without internal linkage the linker would mix them.
namespace {

// Tiles of queries that one thread walks together, key tile by key tile, so that keys and values come from
// memory once for all of them. What a tile computes, and in what order, is the same alone.
constexpr int64_t kTilesPerWalk = 4;

struct FlashScratch {
  FlashScratch(const Launch& launch, Carver& carver) {
    constexpr int64_t kLanes = kVectorsMax * kFloats;
    for (float*& q : queries)
      q = carver.Take<float>(launch.head_dim * std::max<int64_t>(kLanes, kNarrowLanes));
    q_t = queries[0];
    s = carver.Take<float>(kKeysPerTile * kLanes);
    added = carver.Take<float>(kKeysPerTile * kLanes);
    k = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * launch.head_dim);
    v = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * launch.v_head_dim);
    row = carver.Take<float>(std::max(launch.head_dim, launch.v_head_dim));
    narrow_o = carver.Take<float>(kNarrowLanes * static_cast<int64_t>(launch.v_head_dim));
  }
  // Of another tile of those that are walked together.
  FlashScratch Of(int64_t tile) const {
    FlashScratch scratch = *this;
    scratch.q_t = queries[tile];
    return scratch;
  }
  float* queries[kTilesPerWalk];
  float* q_t;
  float* s;
  float* added;  // bias and mask of a tile
  float* k;      // tiles that do not lie end to end in fp32
  float* v;
  float* row;
  float* narrow_o;
};

TileState TakeState(const Launch& launch, Carver& carver) {
  constexpr int64_t kLanes = kVectorsMax * kFloats;
  TileState state;
  state.o = carver.Take<float>(launch.v_head_dim * kLanes);
  state.max = carver.Take<float>(kLanes);
  state.sum = carver.Take<float>(kLanes);
  return state;
}

// Softmax of one tile of keys: scores with their maximum in, weights out, m and l brought up to date.
template <int kVectors, bool kExact>
HWY_INLINE HWY_ATTR void UpdateSoftmax(float* s, int count, Floats* max, const TileState& state,
                                       Floats* correction) {
  const FloatTag df;
  Floats sum[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Floats before = hn::Load(df, state.max + v * kFloats);
    max[v] = hn::Max(before, max[v]);
    correction[v] = Exp2(hn::Sub(before, SafeMax(max[v])));
    hn::Store(max[v], df, state.max + v * kFloats);
  }
  ExpScores<kVectors, kExact>(s, count, max, sum);
  for (int v = 0; v < kVectors; ++v) {
    float* l = state.sum + v * kFloats;
    hn::Store(hn::MulAdd(hn::Load(df, l), correction[v], sum[v]), df, l);
  }
}

// One tile of keys: the step of the algorithm above.
template <int kVectors, bool kExact>
HWY_NOINLINE HWY_ATTR void Step(const Launch& launch, const Tile& tile, int64_t key, int count,
                                const FlashScratch& scratch, const TileState& state) {
  Floats max[kVectors], correction[kVectors];
  FinalScores<kVectors>(launch, tile, scratch.q_t, key, count, scratch.k, scratch.s, scratch.added, max);
  UpdateSoftmax<kVectors, kExact>(scratch.s, count, max, state, correction);
  const Rows values = LoadValues(launch, tile, key, count, scratch.v);
  WeightedSum<kVectors, kExact>(scratch.s, values, count, launch.v_head_dim, correction, state.o);
}

// The same for few lanes; o lies row by row in narrow_o until the walk ends.
template <bool kExact>
HWY_NOINLINE HWY_ATTR void NarrowStep(const Launch& launch, const Tile& tile, int64_t key, int count,
                                      const FlashScratch& scratch, const TileState& state) {
  const FloatTag df;
  Floats max = hn::Set(df, kMasked), correction;
  const Rows keys = LoadKeys(launch, tile, key, count, scratch.k);
  NarrowScores(scratch.q_t, tile.lanes, keys, count, launch.head_dim, scratch.s);
  if (Unmodified(tile, key, count)) {
    for (int c = 0; c < count; ++c) max = hn::Max(max, hn::Load(df, scratch.s + c * kFloats));
  } else {
    ModifyScores<1>(launch, tile, key, count, scratch.s, scratch.added, &max);
  }
  UpdateSoftmax<1, kExact>(scratch.s, count, &max, state, &correction);
  HWY_ALIGN float factor[kFloats];
  hn::Store(correction, df, factor);
  const Rows values = LoadValues(launch, tile, key, count, scratch.v);
  NarrowWeightedSum<kExact>(scratch.s, tile.lanes, values, count, launch.v_head_dim, factor,
                            scratch.narrow_o);
}

// Calls step(key, count) for what the tile of keys at `key` (a multiple of kKeysPerTile) has of the range, if
// it has any.
template <typename Step>
void WithKeys(KeyRange range, int64_t key, const Step& step) {
  const int64_t begin = std::max(key, range.begin / kBlock * kBlock);
  const int64_t end = std::min<int64_t>(key + kKeysPerTile, range.end);
  if (begin < end) step(begin, static_cast<int>(end - begin));
}

// Calls step(key, count) for the tiles of keys in range.
template <typename Step>
void ForEachKeyTile(KeyRange range, const Step& step) {
  for (int64_t key = range.begin / kKeysPerTile * kKeysPerTile; key < range.end; key += kKeysPerTile) {
    WithKeys(range, key, step);
  }
}

template <int kVectors, bool kExact>
void Walk(const Launch& launch, const Tile& tile, KeyRange range, const FlashScratch& scratch,
          const TileState& state) {
  ClearState(state, kVectors * kFloats, launch.v_head_dim);
  ForEachKeyTile(range, [&](int64_t key, int count) {
    Step<kVectors, kExact>(launch, tile, key, count, scratch, state);
  });
}

template <bool kExact>
void WalkNarrow(const Launch& launch, const Tile& tile, KeyRange range, const FlashScratch& scratch,
                const TileState& state) {
  ClearState(state, kFloats, launch.v_head_dim);
  std::fill_n(scratch.narrow_o, kNarrowLanes * launch.v_head_dim, 0.0f);
  std::fill_n(scratch.s, kKeysPerTile * kFloats, 0.0f);  // lanes that are not there
  ForEachKeyTile(
      range, [&](int64_t key, int count) { NarrowStep<kExact>(launch, tile, key, count, scratch, state); });
  for (int lane = 0; lane < tile.lanes; ++lane) {
    for (int d = 0; d < launch.v_head_dim; ++d) {
      state.o[d * kFloats + lane] = scratch.narrow_o[lane * launch.v_head_dim + d];
    }
  }
}

template <int kVectors>
HWY_ATTR void WalkSafely(const Launch& launch, const Tile& tile, KeyRange range, const FlashScratch& scratch,
                         const TileState& state) {
  PackQueries(launch, tile, kVectors * kFloats, scratch.q_t, scratch.row);
  Walk<kVectors, false>(launch, tile, range, scratch, state);
  // NaN came out. It may have come from a value that a row does not see, as 0 * NaN: look closer.
  if (AnyNan(state.o, launch.v_head_dim * kVectors * kFloats)) {
    Walk<kVectors, true>(launch, tile, range, scratch, state);
  }
}

HWY_ATTR void WalkNarrowSafely(const Launch& launch, const Tile& tile, KeyRange range,
                               const FlashScratch& scratch, const TileState& state) {
  PackNarrowQueries(launch, tile, scratch.q_t);
  WalkNarrow<false>(launch, tile, range, scratch, state);
  if (AnyNan(state.o, launch.v_head_dim * kFloats)) WalkNarrow<true>(launch, tile, range, scratch, state);
}

// All of the tile's keys that lie in range, into state.
void RunTile(const Launch& launch, const Tile& tile, KeyRange range, const FlashScratch& scratch,
             const TileState& state) {
  if (tile.lanes <= kNarrowLanes) return WalkNarrowSafely(launch, tile, range, scratch, state);
  WithVectors(tile, [&](auto vectors) { WalkSafely<vectors.value>(launch, tile, range, scratch, state); });
}

// The tiles, none of them narrow, each with a state of its own.
HWY_ATTR void RunTogether(const Launch& launch, std::span<const Tile> tiles, const FlashScratch& scratch,
                          const TileState* states) {
  KeyRange range = tiles[0].keys;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const size_t lanes = Vectors(tiles[i]) * kFloats;
    PackQueries(launch, tiles[i], lanes, scratch.queries[i], scratch.row);
    ClearState(states[i], lanes, launch.v_head_dim);
    range = {std::min(range.begin, tiles[i].keys.begin), std::max(range.end, tiles[i].keys.end)};
  }
  for (int64_t key = range.begin / kKeysPerTile * kKeysPerTile; key < range.end; key += kKeysPerTile) {
    for (size_t i = 0; i < tiles.size(); ++i) {
      WithKeys(tiles[i].keys, key, [&](int64_t begin, int count) {
        const FlashScratch mine = scratch.Of(static_cast<int64_t>(i));
        WithVectors(tiles[i], [&](auto vectors) {
          Step<vectors.value, false>(launch, tiles[i], begin, count, mine, states[i]);
        });
      });
    }
  }
  for (size_t i = 0; i < tiles.size(); ++i) {
    // As in WalkSafely; alone, since it is rare.
    if (AnyNan(states[i].o, launch.v_head_dim * Vectors(tiles[i]) * kFloats)) {
      RunTile(launch, tiles[i], tiles[i].keys, scratch, states[i]);
    }
  }
}

// Folds another split's state into into.
HWY_ATTR void Fold(const TileState& other, size_t lanes, int dim, const TileState& into) {
  const FloatTag df;
  for (size_t lane = 0; lane < lanes; lane += kFloats) {
    const Floats a = hn::Load(df, into.max + lane);
    const Floats b = hn::Load(df, other.max + lane);
    const Floats max = hn::Max(a, b);
    const Floats keep = Exp2(hn::Sub(a, SafeMax(max)));
    const Floats add = Exp2(hn::Sub(b, SafeMax(max)));
    hn::Store(max, df, into.max + lane);
    const Floats sum = hn::Mul(hn::Load(df, other.sum + lane), add);
    hn::Store(hn::MulAdd(hn::Load(df, into.sum + lane), keep, sum), df, into.sum + lane);
    for (int d = 0; d < dim; ++d) {
      float* o = into.o + d * lanes + lane;
      const Floats part = hn::Mul(hn::Load(df, other.o + d * lanes + lane), add);
      hn::Store(hn::MulAdd(hn::Load(df, o), keep, part), df, o);
    }
  }
}

// States that splits of one round may have in flight: enough for the most splits of one tile.
int64_t SplitStates(int thread_count) { return std::max<int64_t>(kSplitsMax, 4 * thread_count); }

bool AnySplit(const Launch& launch) {
  return std::any_of(launch.problems.begin(), launch.problems.end(),
                     [](const Problem& p) { return Splits(p) > 1; });
}

struct FlashWorkspace {
  FlashWorkspace(const Launch& launch, int thread_count, Carver& carver) {
    for (int i = 0; i < thread_count; ++i) {
      scratch.emplace_back(launch, carver);
      for (int64_t t = 0; t < kTilesPerWalk; ++t) states.push_back(TakeState(launch, carver));
    }
    for (int64_t i = 0; AnySplit(launch) && i < SplitStates(thread_count); ++i) {
      split_states.push_back(TakeState(launch, carver));
    }
  }
  std::vector<FlashScratch> scratch;  // one a thread
  std::vector<TileState> states;      // kTilesPerWalk a thread
  std::vector<TileState> split_states;
};

int64_t FlashBytes(const Launch& launch, int thread_count) {
  Carver carver(nullptr);
  FlashWorkspace count(launch, thread_count, carver);
  return carver.used();
}

// Tiles [first, first + tiles) of units, split for split, then folded in the order of their keys.
void RunSplitRound(const Launch& launch, const Units& units, int64_t first, const std::vector<int64_t>& ends,
                   const FlashWorkspace& workspace, Parallel& parallel) {
  const auto find = [&ends](int64_t i) {
    return std::upper_bound(ends.begin(), ends.end(), i) - ends.begin();
  };
  parallel.For(ends.back(), [&](int64_t i, int thread) {
    const auto at = find(i);
    const Tile tile = units.At(first + at);
    const int64_t per_split = KeysPerSplit(*tile.problem);
    const int64_t begin = (i - (at == 0 ? 0 : ends[at - 1])) * per_split;
    const KeyRange range = {std::max(begin, tile.keys.begin), std::min(begin + per_split, tile.keys.end)};
    RunTile(launch, tile, range, workspace.scratch[thread], workspace.split_states[i]);
  });
  parallel.For(static_cast<int64_t>(ends.size()), [&](int64_t at, int thread) {
    const Tile tile = units.At(first + at);
    const size_t lanes = Vectors(tile) * kFloats;
    const int64_t begin = at == 0 ? 0 : ends[at - 1];
    for (int64_t i = begin + 1; i < ends[at]; ++i) {
      Fold(workspace.split_states[i], lanes, launch.v_head_dim, workspace.split_states[begin]);
    }
    StoreTile(launch, tile, lanes, workspace.split_states[begin], false, workspace.scratch[thread].row);
  });
}

void Flash(const Launch& launch, void* block, Parallel& parallel) {
  Carver carver(block);
  const FlashWorkspace workspace(launch, parallel.thread_count(), carver);
  constexpr int kLanes = kVectorsMax * kFloats;
  const Units whole(launch.problems, kLanes, [](const Problem& p) { return Splits(p) == 1; });
  // As many together as leave each thread a few walks.
  const int64_t together =
      std::clamp<int64_t>(whole.count() / (4 * parallel.thread_count()), 1, kTilesPerWalk);
  parallel.For((whole.count() + together - 1) / together, [&](int64_t walk, int thread) {
    const FlashScratch& scratch = workspace.scratch[thread];
    const TileState* const states = &workspace.states[thread * kTilesPerWalk];
    std::vector<Tile> tiles;
    for (int64_t unit = walk * together; unit < std::min((walk + 1) * together, whole.count()); ++unit) {
      const Tile tile = whole.At(unit);
      if (tile.lanes > kNarrowLanes) {
        tiles.push_back(tile);
        continue;
      }
      const TileState& state = states[kTilesPerWalk - 1];  // not in use yet, or by nobody
      RunTile(launch, tile, tile.keys, scratch, state);
      StoreTile(launch, tile, Vectors(tile) * kFloats, state, false, scratch.row);
    }
    if (tiles.empty()) return;
    RunTogether(launch, tiles, scratch, states);
    for (size_t i = 0; i < tiles.size(); ++i) {
      StoreTile(launch, tiles[i], Vectors(tiles[i]) * kFloats, states[i], false, scratch.row);
    }
  });
  const Units split(launch.problems, kLanes, [](const Problem& p) { return Splits(p) > 1; });
  const int64_t states = static_cast<int64_t>(workspace.split_states.size());
  for (int64_t unit = 0; unit < split.count();) {
    std::vector<int64_t> ends;  // states used by the round's tiles up to each
    const int64_t first = unit;
    for (int64_t used = 0; unit < split.count(); ++unit) {
      used += Splits(split.ProblemOf(unit));
      if (used > states) break;
      ends.push_back(used);
    }
    RunSplitRound(launch, split, first, ends, workspace, parallel);
  }
}

int TileLanes() { return kVectorsMax * kFloats; }

}  // namespace
}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(FlashBytes);
HWY_EXPORT(Flash);
HWY_EXPORT(TileLanes);

int64_t FlashWorkspaceBytes(const Launch& launch, int thread_count) {
  return HWY_DYNAMIC_DISPATCH(FlashBytes)(launch, thread_count);
}
void RunFlash(const Launch& launch, void* workspace, Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(Flash)(launch, workspace, parallel);
}
int LanesPerTile() { return HWY_DYNAMIC_DISPATCH(TileLanes)(); }

}  // namespace attend::cpu
#endif
