// What NAIVE and ONLINE share: a matrix of scores in memory, kept tile by tile as s[key][lane].
#if defined(ATTEND_KERNELS_CPU_SCORE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTEND_KERNELS_CPU_SCORE_MATRIX_INL_H_
#undef ATTEND_KERNELS_CPU_SCORE_MATRIX_INL_H_
#else
#define ATTEND_KERNELS_CPU_SCORE_MATRIX_INL_H_
#endif

#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {

inline constexpr int kTileLanes = kVectorsMax * static_cast<int>(kFloats);

// The scores of one tile of queries.
struct ScoreTile {
  float* max = nullptr;     // [lanes]
  float* sum = nullptr;     // [lanes]
  float* scores = nullptr;  // [keys][lanes]
  int64_t keys = 0;
};

inline ScoreTile MakeScoreTile(const Tile& tile, float* block) {
  return {block, block + kTileLanes, block + 2 * kTileLanes, tile.problem->kv_len};
}

struct MatrixScratch {
  MatrixScratch(const Launch& launch, Carver& carver) {
    q_t = carver.Take<float>(static_cast<int64_t>(launch.head_dim) * kTileLanes);
    o = carver.Take<float>(static_cast<int64_t>(launch.v_head_dim) * kTileLanes);
    s = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * kTileLanes);
    added = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * kTileLanes);
    k = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * launch.head_dim);
    v = carver.Take<float>(static_cast<int64_t>(kKeysPerTile) * launch.v_head_dim);
    row = carver.Take<float>(std::max(launch.head_dim, launch.v_head_dim));
  }
  float* q_t;
  float* o;
  float* s;
  float* added;
  float* k;
  float* v;
  float* row;
};

inline int64_t MatrixBytes(const Launch& launch, int thread_count) {
  Carver carver(nullptr);
  for (int i = 0; i < thread_count; ++i) MatrixScratch(launch, carver);
  carver.Take<float>(ScoreFloats(launch, kTileLanes));
  return carver.used();
}

struct MatrixWorkspace {
  MatrixWorkspace(const Launch& launch, void* block, int64_t block_bytes, int thread_count) {
    Carver carver(block);
    for (int i = 0; i < thread_count; ++i) scratch.emplace_back(launch, carver);
    score_floats = (block_bytes - carver.used()) / static_cast<int64_t>(sizeof(float));
    scores = carver.Take<float>(0);
  }
  std::vector<MatrixScratch> scratch;  // one a thread
  float* scores;
  int64_t score_floats;
};

template <int kVectors>
HWY_ATTR void ScoresPass(const Launch& launch, const Tile& tile, const ScoreTile& t,
                         const MatrixScratch& scratch) {
  constexpr size_t kLanes = kVectors * kFloats;
  PackQueries(launch, tile, kLanes, scratch.q_t, scratch.row);
  for (int64_t key = 0; key < t.keys; key += kKeysPerTile) {
    const int count = static_cast<int>(std::min<int64_t>(kKeysPerTile, t.keys - key));
    Floats max[kVectors];
    FinalScores<kVectors>(launch, tile, scratch.q_t, key, count, scratch.k, t.scores + key * kLanes,
                          scratch.added, max);
  }
}

// What exp(score - max) is multiplied by to be a weight; 0 where a lane saw nothing.
inline void Normalisers(const Launch& launch, const Tile& tile, const ScoreTile& t, size_t lanes,
                        float* factors) {
  for (size_t lane = 0; lane < lanes; ++lane) {
    factors[lane] = EndLane(launch, tile, static_cast<int>(lane), {nullptr, t.max, t.sum}).factor;
  }
}

// Copies weights[key][lane] of count keys to the caller, where it asked for all rows.
inline void WriteWeights(const Tile& tile, int64_t key, int count, size_t lanes, const float* weights) {
  const Problem& p = *tile.problem;
  if (p.weights == nullptr || p.weight_rows != nullptr) return;
  for (int lane = 0; lane < tile.lanes; ++lane) {
    float* to =
        p.weights + tile.head[lane] * p.weights_head_stride + tile.row[lane] * p.weights_row_stride + key;
    for (int c = 0; c < count; ++c) to[c] = weights[c * lanes + lane];
  }
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
