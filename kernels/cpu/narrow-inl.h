// The two matrix products for tiles of few lanes, as one query token against a cache is. Vectors of lanes
// would be nearly empty; here vectors run along head_dim, queries and outputs lie row by row, and keys and
// values are read once, at the speed of memory. Scores keep their shape, s[key][lane] with one vector of
// lanes, so that all between the products is shared with the wide tiles.
#if defined(ATTEND_KERNELS_CPU_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_NARROW_INL_H_
#undef ATTEND_KERNELS_CPU_NARROW_INL_H_
#else
#define ATTEND_KERNELS_CPU_NARROW_INL_H_
#endif

#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

// Up to so many lanes, all in one vector, a tile is narrow.
inline constexpr int kNarrowLanes = kFloats < 4 ? static_cast<int>(kFloats) : 4;

// head_dims are multiples of 8 and no more.
using DimTag = hn::CappedTag<float, 8>;
using Dims = hn::Vec<DimTag>;
inline constexpr int kDims = static_cast<int>(hn::MaxLanes(DimTag()));

// As PackQueries, but q[lane][dim].
HWY_INLINE HWY_ATTR void PackNarrowQueries(const Launch& launch, const Tile& tile, float* q) {
  const Problem& p = *tile.problem;
  const float factor = ScoreFactor(p);
  for (int lane = 0; lane < tile.lanes; ++lane) {
    const int64_t at = tile.row[lane] * p.q_strides.token + tile.head[lane] * p.q_strides.head;
    LoadRow(launch.dtype, p.q, at, launch.head_dim, factor, q + lane * launch.head_dim);
  }
}

// s[key][lane] = q[lane]·key of count keys, four keys at a time.
HWY_INLINE HWY_ATTR void NarrowScores(const float* q, int lanes, Rows keys, int count, int head_dim,
                                      float* s) {
  const DimTag dd;
  constexpr int kKeys = 4;
  for (int c = 0; c < count; c += kKeys) {
    const float* k[kKeys];
    for (int i = 0; i < kKeys; ++i) k[i] = keys.data + std::min(c + i, count - 1) * keys.stride;
    for (int lane = 0; lane < lanes; ++lane) {
      const float* row = q + lane * head_dim;
      Dims acc[kKeys];
      for (int i = 0; i < kKeys; ++i) acc[i] = hn::Zero(dd);
      for (int d = 0; d < head_dim; d += kDims) {
        const Dims x = hn::LoadU(dd, row + d);
        for (int i = 0; i < kKeys; ++i) acc[i] = hn::MulAdd(x, hn::LoadU(dd, k[i] + d), acc[i]);
      }
      for (int i = 0; i < kKeys; ++i) s[(c + i) * kFloats + lane] = hn::GetLane(hn::SumOfLanes(dd, acc[i]));
    }
  }
}

// kVectors vectors of dimensions of one lane.
template <int kVectors, bool kExact>
HWY_INLINE HWY_ATTR void NarrowValueBlock(const float* p, const float* values, size_t stride, int count,
                                          float factor, float* o) {
  const DimTag dd;
  Dims acc[kVectors];
  for (int v = 0; v < kVectors; ++v) acc[v] = hn::Zero(dd);
  for (int c = 0; c < count; ++c) {
    const float w = p[c * kFloats];
    if (kExact && w < 0) continue;  // kUnseen
    const Dims weight = hn::Set(dd, w);
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = hn::MulAdd(weight, hn::LoadU(dd, values + c * stride + v * kDims), acc[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    hn::StoreU(hn::MulAdd(hn::LoadU(dd, o + v * kDims), hn::Set(dd, factor), acc[v]), dd, o + v * kDims);
  }
}

// o[lane][dim] = o * factor[lane] + the sum of p[key][lane] * values[key][dim].
template <bool kExact>
HWY_INLINE HWY_ATTR void NarrowWeightedSum(const float* p, int lanes, Rows values, int count, int dim,
                                           const float* factor, float* o) {
  constexpr int kMany = 8;
  for (int lane = 0; lane < lanes; ++lane) {
    float* to = o + lane * dim;
    int d = 0;
    for (; d + kMany * kDims <= dim; d += kMany * kDims) {
      NarrowValueBlock<kMany, kExact>(p + lane, values.data + d, values.stride, count, factor[lane], to + d);
    }
    for (; d < dim; d += kDims) {
      NarrowValueBlock<1, kExact>(p + lane, values.data + d, values.stride, count, factor[lane], to + d);
    }
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
