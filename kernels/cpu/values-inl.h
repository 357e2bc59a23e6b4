// The second matrix product and the way out, a tile at a time. Outputs stand transposed like the scores:
// o[dim][lane]; a value's element is broadcast, a vector of weights multiplies it.
#if defined(ATTEND_KERNELS_CPU_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_VALUES_INL_H_
#undef ATTEND_KERNELS_CPU_VALUES_INL_H_
#else
#define ATTEND_KERNELS_CPU_VALUES_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

// A weight that stands for "may not see" where it matters: 0 times NaN would be NaN.
inline constexpr float kUnseen = -1.0f;

// kBlock dimensions by kVectors vectors of lanes, summed apart from o: short chains round less. With kExact,
// weights of kUnseen count for nothing.
template <int kVectors, bool kExact>
HWY_INLINE HWY_ATTR void ValueBlock(const float* HWY_RESTRICT p, const float* HWY_RESTRICT values,
                                    size_t stride, int count, const Floats* factor, float* HWY_RESTRICT o) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats acc[kBlock][kVectors];
  for (int i = 0; i < kBlock; ++i) {
    for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::Zero(df);
  }
  for (int c = 0; c < count; ++c) {
    Floats w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = hn::Load(df, p + c * kLanes + v * kFloats);
    const float* x = values + c * stride;
    for (int i = 0; i < kBlock; ++i) {
      const Floats xi = hn::Set(df, x[i]);
      for (int v = 0; v < kVectors; ++v) {
        const Floats sum = hn::MulAdd(xi, w[v], acc[i][v]);
        acc[i][v] = kExact ? hn::IfThenElse(hn::Lt(w[v], hn::Zero(df)), acc[i][v], sum) : sum;
      }
    }
  }
  for (int i = 0; i < kBlock; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = o + i * kLanes + v * kFloats;
      hn::Store(hn::MulAdd(hn::Load(df, at), factor[v], acc[i][v]), df, at);
    }
  }
}

// Rows of values that are walked, a few dimensions at a time, before the next rows. A cache line of a row
// serves several such walks if it is still there: as many rows as an L1 cache of 32 KB holds whole, since
// lines at equal distances share its sets.
inline int ValueRowsPerChunk(size_t stride) {
  return std::clamp(static_cast<int>(8192 / stride), 16, kKeysPerTile);
}

// o[dim][lane] = o * factor[lane] + the sum of p[key][lane] * values[key][dim].
template <int kVectors, bool kExact>
HWY_INLINE HWY_ATTR void WeightedSum(const float* p, Rows values, int count, int dim, const Floats* factor,
                                     float* o) {
  constexpr size_t kLanes = kVectors * kFloats;
  Floats times[kVectors];
  for (int v = 0; v < kVectors; ++v) times[v] = factor[v];
  const int chunk = ValueRowsPerChunk(values.stride);
  for (int c = 0; c < count; c += chunk) {
    for (int d = 0; d < dim; d += kBlock) {
      ValueBlock<kVectors, kExact>(p + c * kLanes, values.data + c * values.stride + d, values.stride,
                                   std::min(chunk, count - c), times, o + d * kLanes);
    }
    for (int v = 0; v < kVectors; ++v) times[v] = hn::Set(FloatTag(), 1.0f);
  }
}

// Turns scores into exp(score - max) in place; returns the sums in sum. With kExact, what a lane may not see
// becomes kUnseen.
template <int kVectors, bool kExact>
HWY_INLINE HWY_ATTR void ExpScores(float* s, int count, const Floats* max, Floats* sum) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats safe[kVectors], total[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    safe[v] = SafeMax(max[v]);
    total[v] = hn::Zero(df);
  }
  for (int c = 0; c < count; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = s + c * kLanes + v * kFloats;
      const Floats x = hn::Load(df, at);
      const Floats e = Exp2(hn::Sub(x, safe[v]));
      total[v] = hn::Add(total[v], e);
      hn::Store(kExact ? hn::IfThenElse(hn::Eq(x, hn::Set(df, kMasked)), hn::Set(df, kUnseen), e) : e, df,
                at);
    }
  }
  for (int v = 0; v < kVectors; ++v) sum[v] = total[v];
}

// Whether any of n floats (a multiple of kFloats) is NaN.
HWY_INLINE HWY_ATTR bool AnyNan(const float* x, size_t n) {
  const FloatTag df;
  Floats zeros = hn::Zero(df);  // of NaN and Inf a product with 0 is NaN; of all else 0
  for (size_t i = 0; i < n; i += kFloats) zeros = hn::MulAdd(hn::Load(df, x + i), hn::Zero(df), zeros);
  return !hn::AllTrue(df, hn::Eq(zeros, zeros));
}

// What a tile's softmax has come to: out is o / sum, the log-sum-exp max + log2(sum).
struct TileState {
  float* o = nullptr;    // [v_head_dim][lanes]
  float* max = nullptr;  // [lanes]
  float* sum = nullptr;  // [lanes]
};

HWY_INLINE HWY_ATTR void ClearState(const TileState& state, size_t lanes, int dim) {
  std::fill_n(state.o, lanes * dim, 0.0f);
  std::fill_n(state.max, lanes, kMasked);
  std::fill_n(state.sum, lanes, 0.0f);
}

inline void StoreRow(DataType dtype, const float* row, int dim, void* out, int64_t at) {
  if (dtype == DataType::kFp32) {
    std::copy_n(row, dim, static_cast<float*>(out) + at);
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(out) + at;
  for (int d = 0; d < dim; ++d) to[d] = dtype == DataType::kFp16 ? ToFp16Bits(row[d]) : ToBf16Bits(row[d]);
}

// How a lane ends: what o is multiplied by, and its natural log-sum-exp. Sinks enter here.
struct LaneEnd {
  float factor = 0.0f;  // 0 where it saw no key
  float lse = kMasked;
};
inline LaneEnd EndLane(const Launch& launch, const Tile& tile, int lane, const TileState& state) {
  const Problem& p = *tile.problem;
  const bool has_sink = p.sinks != nullptr && !launch.partial;
  const float sink = has_sink ? p.sinks[tile.head[lane]] : kMasked;
  if (state.sum[lane] == 0.0f) return {0.0f, sink};
  // In double: once per row, and lse must not lose what the sums have kept.
  const double max = static_cast<double>(state.max[lane]) * 0.69314718055994530942;
  const double top = std::max(max, static_cast<double>(sink));
  const double share = std::exp(max - top);
  const double total = state.sum[lane] * share + (has_sink ? std::exp(sink - top) : 0.0);
  return {static_cast<float>(share / total), static_cast<float>(top + std::log(total))};
}

// Writes out and lse of the tile's lanes, o being divided by the sum already or not. row is scratch of
// v_head_dim floats.
inline void StoreTile(const Launch& launch, const Tile& tile, size_t lanes, const TileState& state,
                      bool normalised, float* row) {
  const Problem& p = *tile.problem;
  const DataType type = launch.partial ? DataType::kFp32 : launch.dtype;
  for (int lane = 0; lane < tile.lanes; ++lane) {
    const int64_t head = tile.head[lane];
    const LaneEnd end = EndLane(launch, tile, lane, state);
    const float factor = normalised ? 1.0f : end.factor;
    for (int d = 0; d < launch.v_head_dim; ++d) row[d] = state.o[d * lanes + lane] * factor;
    StoreRow(type, row, launch.v_head_dim, p.out,
             tile.row[lane] * p.out_strides.token + head * p.out_strides.head);
    if (p.lse != nullptr) p.lse[head * p.lse_head_stride + tile.row[lane]] = end.lse;
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
