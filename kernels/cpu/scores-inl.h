// The first matrix product and what modifies its scores, a tile at a time.
//
// Scores stand transposed: s[key][lane], lanes side by side in vectors. A key's element is broadcast, a
// vector of queries multiplies it. So K is read as it lies, only the queries are transposed (once per tile),
// and maximum, exp and sum of a row run down its lane without a horizontal step.
//
// All scores are in units of log2: exp(x) = exp2(x * log2(e)).
#if defined(ATTEND_KERNELS_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_SCORES_INL_H_
#undef ATTEND_KERNELS_CPU_SCORES_INL_H_
#else
#define ATTEND_KERNELS_CPU_SCORES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/bf16_scores-inl.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/float16.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

// Vectors that hold the tile's lanes.
inline int Vectors(const Tile& tile) {
  return (tile.lanes + static_cast<int>(kFloats) - 1) / static_cast<int>(kFloats);
}

// Calls body(n), where n is Vectors(tile), 1 to 3, as a constant: a std::integral_constant.
template <typename Body>
void WithVectors(const Tile& tile, const Body& body) {
  switch (Vectors(tile)) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    default:
      return body(std::integral_constant<int, 3>());
  }
}

// Elements of `dim` floats each, `stride` apart.
struct Rows {
  const float* data = nullptr;
  size_t stride = 0;
};

// Tokens [key, key + count) of one head of k or v, as fp32: in place where they lie end to end, else copied
// to buffer ([count, dim]).
HWY_INLINE HWY_ATTR Rows LoadTokens(DataType dtype, const void* base, const Strides& strides,
                                    const PageTable& pages, int64_t page_stride, int64_t head, int64_t key,
                                    int count, int dim, float* buffer) {
  if (pages.table == nullptr && dtype == DataType::kFp32 && strides.token == dim) {
    const int64_t at = TokenOffset(strides, pages, page_stride, head, key);
    return {static_cast<const float*>(base) + at, static_cast<size_t>(dim)};
  }
  for (int c = 0; c < count; ++c) {
    const int64_t at = TokenOffset(strides, pages, page_stride, head, key + c);
    LoadRow(dtype, base, at, dim, 1.0f, buffer + static_cast<int64_t>(c) * dim);
  }
  return {buffer, static_cast<size_t>(dim)};
}

HWY_INLINE HWY_ATTR Rows LoadKeys(const Launch& launch, const Tile& tile, int64_t key, int count,
                                  float* buffer) {
  const Problem& p = *tile.problem;
  return LoadTokens(launch.dtype, p.k, p.k_strides, p.pages, p.pages.k_page_stride, tile.kv_head, key, count,
                    launch.head_dim, buffer);
}

HWY_INLINE HWY_ATTR Rows LoadValues(const Launch& launch, const Tile& tile, int64_t key, int count,
                                    float* buffer) {
  const Problem& p = *tile.problem;
  return LoadTokens(launch.dtype, p.v, p.v_strides, p.pages, p.pages.v_page_stride, tile.kv_head, key, count,
                    launch.v_head_dim, buffer);
}

// Scores are q·k times this: the scale, and log2(e). A softcap needs its scores without log2(e); ModifyScores
// makes up for it.
inline float ScoreFactor(const Problem& p) { return p.softcap > 0 ? p.scale : p.scale * kLog2E; }

// q_t[dim][lane] = q * factor, `lanes` lanes to a dim; bf16 may be in pairs instead. row is scratch of
// head_dim floats.
HWY_INLINE HWY_ATTR void PackQueries(const Launch& launch, const Tile& tile, size_t lanes, float* q_t,
                                     float* row) {
#if HWY_TARGET == HWY_AVX3
  if (InPairs(launch)) return PackPairs(launch, tile, lanes, q_t);
#endif
  const Problem& p = *tile.problem;
  const float factor = ScoreFactor(p);
  for (size_t lane = 0; lane < lanes; ++lane) {
    const int64_t at = tile.row[lane] * p.q_strides.token + tile.head[lane] * p.q_strides.head;
    LoadRow(launch.dtype, p.q, at, launch.head_dim, factor, row);
    for (int d = 0; d < launch.head_dim; ++d) q_t[d * lanes + lane] = row[d];
  }
}

// Keys of a block: its scores are summed in two chains each, half of the dimensions to a chain, because a
// score's rounding error grows with the length of a chain and the size of what it has summed.
inline constexpr int kKeyBlock = kBlock / 2;

// kKeyBlock keys by kVectors vectors of lanes, over dims dimensions (an even number); added to s, or in its
// place.
template <int kVectors>
HWY_INLINE HWY_ATTR void ScoreBlock(const float* HWY_RESTRICT q_t, const float* const* keys, int dims,
                                    bool add, float* HWY_RESTRICT s, Floats* max) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  Floats acc[2][kKeyBlock][kVectors];
  const float* k[kKeyBlock];
  for (int i = 0; i < kKeyBlock; ++i) {
    k[i] = keys[i];
    for (int v = 0; v < kVectors; ++v) acc[0][i][v] = acc[1][i][v] = hn::Zero(df);
  }
  const int half = dims / 2;
  for (int d = 0; d < half; ++d) {
    for (int chain = 0; chain < 2; ++chain) {
      const int at = d + chain * half;
      Floats q[kVectors];
      for (int v = 0; v < kVectors; ++v) q[v] = hn::Load(df, q_t + at * kLanes + v * kFloats);
      for (int i = 0; i < kKeyBlock; ++i) {
        const Floats x = hn::Set(df, k[i][at]);
        for (int v = 0; v < kVectors; ++v) acc[chain][i][v] = hn::MulAdd(x, q[v], acc[chain][i][v]);
      }
    }
  }
  for (int i = 0; i < kKeyBlock; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = s + i * kLanes + v * kFloats;
      Floats sum = hn::Add(acc[0][i][v], acc[1][i][v]);
      if (add) sum = hn::Add(sum, hn::Load(df, to));
      hn::Store(sum, df, to);
      max[v] = hn::Max(max[v], sum);
    }
  }
}

// Dimensions summed in one go: the chains are short, and so much of the queries stays in the L1 cache.
inline constexpr int kDimsPerChunk = 64;

// s[key][lane] of count keys; s has room for a multiple of kKeyBlock keys. max[v] is raised to the largest.
template <int kVectors>
HWY_INLINE HWY_ATTR void Scores(const float* q_t, Rows keys, int count, int head_dim, float* s, Floats* max) {
  constexpr size_t kLanes = kVectors * kFloats;
  const int chunks = (head_dim + kDimsPerChunk - 1) / kDimsPerChunk;
  const int chunk = ((head_dim + chunks - 1) / chunks + 7) / 8 * 8;
  for (int begin = 0; begin < head_dim; begin += chunk) {
    const bool last = begin + chunk >= head_dim;
    for (int c = 0; c < count; c += kKeyBlock) {
      const float* rows[kKeyBlock];  // behind the last key, the last again: its scores are not looked at
      for (int i = 0; i < kKeyBlock; ++i)
        rows[i] = keys.data + std::min(c + i, count - 1) * keys.stride + begin;
      Floats unused[kVectors];
      for (int v = 0; v < kVectors; ++v) unused[v] = max[v];
      ScoreBlock<kVectors>(q_t + begin * kLanes, rows, std::min(chunk, head_dim - begin), begin > 0,
                           s + c * kLanes, last ? max : unused);
    }
  }
}

// Whether each lane sees each of these keys and nothing changes its scores.
inline bool Unmodified(const Tile& tile, int64_t key, int count) {
  const Problem& p = *tile.problem;
  if (p.softcap > 0 || p.bias != nullptr || p.mask != nullptr || p.alibi_slopes != nullptr) return false;
  const KeyRange first = VisibleKeys(p, tile.row[0]);
  const KeyRange last = VisibleKeys(p, tile.row[tile.lanes - 1]);
  return std::max(first.begin, last.begin) <= key && std::min(first.end, last.end) >= key + count;
}

inline float BoundedBias(float x) { return std::isfinite(x) ? std::clamp(x, -kBiasMax, kBiasMax) : x; }

// added[key][lane] = bias * log2(e), or -inf where bias or mask forbid it.
inline void GatherBias(const Launch& launch, const Tile& tile, int64_t key, int count, size_t lanes,
                       float* added) {
  const Problem& p = *tile.problem;
  const DataType type = p.bias_is_fp32 ? DataType::kFp32 : launch.dtype;
  for (size_t lane = 0; lane < lanes; ++lane) {
    float* to = added + lane;
    const ScoreStrides& b = p.bias_strides;
    const int64_t bias_at = tile.head[lane] * b.head + tile.row[lane] * b.row + key * b.key;
    for (int c = 0; c < count; ++c) {
      float x = 0;
      if (p.bias != nullptr) {
        const int64_t at = bias_at + c * b.key;
        if (type == DataType::kFp32) {
          x = static_cast<const float*>(p.bias)[at];
        } else {
          const uint16_t bits = static_cast<const uint16_t*>(p.bias)[at];
          x = type == DataType::kFp16 ? FromFp16Bits(bits) : FromBf16Bits(bits);
        }
      }
      to[c * lanes] = BoundedBias(x) * kLog2E;
    }
    if (p.mask == nullptr) continue;
    const ScoreStrides& m = p.mask_strides;
    const uint8_t* mask = p.mask + tile.head[lane] * m.head + tile.row[lane] * m.row + key * m.key;
    for (int c = 0; c < count; ++c) {
      if (mask[c * m.key] == 0) to[c * lanes] = kMasked;
    }
  }
}

// Softcap, bias, ALiBi, mask, causal mask and window of s[key][lane]; raises max. added: scratch of count x
// lanes floats.
template <int kVectors>
HWY_INLINE HWY_ATTR void ModifyScores(const Launch& launch, const Tile& tile, int64_t key, int count,
                                      float* s, float* added, Floats* max) {
  const FloatTag df;
  constexpr size_t kLanes = kVectors * kFloats;
  const Problem& p = *tile.problem;
  const bool biased = p.bias != nullptr || p.mask != nullptr;
  if (biased) GatherBias(launch, tile, key, count, kLanes, added);
  // Of each lane: the keys of this tile that it sees, its distance from the first, its slope.
  HWY_ALIGN float begin[kLanes], end[kLanes], distance[kLanes], slope[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const KeyRange range = VisibleKeys(p, tile.row[lane]);
    begin[lane] = static_cast<float>(std::clamp<int64_t>(range.begin - key, 0, count));
    end[lane] = static_cast<float>(std::clamp<int64_t>(range.end - key, 0, count));
    distance[lane] = static_cast<float>(tile.row[lane] + p.kv_len - p.q_len - key);
    slope[lane] = p.alibi_slopes != nullptr ? p.alibi_slopes[tile.head[lane]] * -kLog2E : 0.0f;
  }
  const Floats cap = hn::Set(df, p.softcap * kLog2E);
  const Floats inverse_cap = hn::Set(df, p.softcap > 0 ? 1.0f / p.softcap : 0.0f);
  const Floats masked = hn::Set(df, kMasked);
  for (int c = 0; c < count; ++c) {
    const Floats at = hn::Set(df, static_cast<float>(c));
    for (int v = 0; v < kVectors; ++v) {
      float* to = s + c * kLanes + v * kFloats;
      Floats x = hn::Load(df, to);
      if (p.softcap > 0) x = hn::Mul(cap, Tanh(hn::Mul(x, inverse_cap)));
      if (p.alibi_slopes != nullptr) {
        const Floats far = hn::Abs(hn::Sub(hn::Load(df, distance + v * kFloats), at));
        x = hn::MulAdd(hn::Load(df, slope + v * kFloats), far, x);
      }
      auto seen =
          hn::And(hn::Ge(at, hn::Load(df, begin + v * kFloats)), hn::Lt(at, hn::Load(df, end + v * kFloats)));
      if (biased) {
        const Floats bias = hn::Load(df, added + c * kLanes + v * kFloats);
        x = hn::Add(x, bias);
        seen = hn::AndNot(hn::Eq(bias, masked), seen);
      }
      x = hn::IfThenElse(seen, x, masked);
      hn::Store(x, df, to);
      max[v] = hn::Max(max[v], x);
    }
  }
}

// The product alone, of keys [key, key + count) with the queries of PackQueries. k: scratch of count x
// head_dim floats.
template <int kVectors>
HWY_INLINE HWY_ATTR void Product(const Launch& launch, const Tile& tile, const float* q_t, int64_t key,
                                 int count, float* k, float* s, Floats* max) {
#if HWY_TARGET == HWY_AVX3
  if (InPairs(launch)) {
    return PairScores<kVectors>(q_t, LoadBf16Keys(launch, tile, key, count, k), count, launch.head_dim,
                                ScoreFactor(*tile.problem), s, max);
  }
#endif
  Scores<kVectors>(q_t, LoadKeys(launch, tile, key, count, k), count, launch.head_dim, s, max);
}

// Scores of count keys as softmax wants them, with their maximum: product and modifiers.
template <int kVectors>
HWY_INLINE HWY_ATTR void FinalScores(const Launch& launch, const Tile& tile, const float* q_t, int64_t key,
                                     int count, float* k, float* s, float* added, Floats* max) {
  const FloatTag df;
  for (int v = 0; v < kVectors; ++v) max[v] = hn::Set(df, kMasked);
  Product<kVectors>(launch, tile, q_t, key, count, k, s, max);
  if (Unmodified(tile, key, count)) return;
  for (int v = 0; v < kVectors; ++v) max[v] = hn::Set(df, kMasked);
  ModifyScores<kVectors>(launch, tile, key, count, s, added, max);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
