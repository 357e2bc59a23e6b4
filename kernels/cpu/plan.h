// How a launch is cut into work for threads: plain host code, no vectors.
//
// Queries are walked in lanes. All query heads of one KV head read the same keys, so row i of query head g
// of the group is lane i * group + g of that KV head, and a vector register holds as many lanes as it has
// floats. A tile is up to three vectors of lanes; a unit of work is a tile of one KV head.
#ifndef ATTEND_KERNELS_CPU_PLAN_H_
#define ATTEND_KERNELS_CPU_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace attend::cpu {

inline constexpr int kVectorsMax = 3;  // of lanes in a tile
inline constexpr int kLanesMax = 16 * kVectorsMax;
inline constexpr int kKeysPerTile = 128;
// Scores are written in whole blocks of keys: there is room for a multiple of these.
inline constexpr int kKeyPadding = 8;
static_assert(kKeysPerTile % kKeyPadding == 0);
// Bytes of each thread's caches are shared by nobody: scratch is carved in whole lines.
inline constexpr int64_t kAlignment = 64;

// The query rows and heads that a tile's lanes stand for.
struct Tile {
  const Problem* problem = nullptr;
  int64_t kv_head = 0;
  int lanes = 0;                // used
  int64_t row[kLanesMax] = {};  // unused lanes repeat the last one
  int64_t head[kLanesMax] = {};
  KeyRange keys;  // that some lane sees by causal mask and window
};

// Query heads that share a KV head.
inline int64_t Group(const Problem& p) { return p.q_heads / p.kv_heads; }

// Elements from the base of k or v to a token of a head. page_stride: where paged, that of the tensor.
inline int64_t TokenOffset(const Strides& strides, const PageTable& pages, int64_t page_stride, int64_t head,
                           int64_t token) {
  const int64_t at = head * strides.head;
  if (pages.table == nullptr) return at + token * strides.token;
  return at + pages.table[token / pages.tokens] * page_stride + token % pages.tokens * strides.token;
}

// Lanes [begin, begin + lanes_per_tile) of a KV head, clipped to those there are.
Tile MakeTile(const Problem& problem, int64_t kv_head, int64_t begin, int lanes_per_tile);

// A tile of one query row (of any row, for weights): heads [begin, ...) of the group.
Tile MakeRowTile(const Problem& problem, int64_t kv_head, int64_t row, int64_t begin, int lanes_per_tile);

// The units of a list of problems, numbered from 0: problem by problem, KV head by KV head.
class Units {
 public:
  // Only problems for which keep(problem) holds have units.
  template <typename Keep>
  Units(std::span<const Problem> problems, int lanes_per_tile, const Keep& keep)
      : lanes_per_tile_(lanes_per_tile) {
    for (const Problem& p : problems) {
      if (p.q_len > 0 && keep(p)) Add(p);
    }
  }
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  // The last tile of a KV head comes first: under a causal mask it is the longest.
  Tile At(int64_t unit) const;
  const Problem& ProblemOf(int64_t unit) const { return *problems_[Find(unit)]; }

 private:
  void Add(const Problem& p);
  size_t Find(int64_t unit) const {
    return std::upper_bound(ends_.begin(), ends_.end(), unit) - ends_.begin();
  }

  int lanes_per_tile_;
  std::vector<const Problem*> problems_;
  std::vector<int64_t> ends_;  // units of problems up to this one, inclusive
};

// Into how many parts FLASH splits the keys of each tile: 1, unless few queries look at many keys and
// there would be little to do at once. A function of the problem alone, because it decides bits.
inline constexpr int kSplitsMax = 32;
int Splits(const Problem& problem);
// Keys of each split but the last; a multiple of kKeysPerTile.
int64_t KeysPerSplit(const Problem& problem);

// Tiles whose scores are held at once, by NAIVE and ONLINE.
struct Round {
  int64_t first = 0;             // unit
  std::vector<int64_t> offsets;  // of each tile's scores, floats; one entry more than tiles
  int64_t tiles() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

// Floats that a tile's scores take, with its maxima and sums.
int64_t ScoreFloats(const Problem& problem, int lanes_per_tile);
// Floats for the scores of a launch: of all of it, or of about 64 MiB at a time where it is larger, but
// never less than those of one KV head.
int64_t ScoreFloats(const Launch& launch, int lanes_per_tile);
// As many tiles from `first` as fit into `floats`, at least one.
Round MakeRound(const Units& units, int64_t first, int lanes_per_tile, int64_t floats);

// Carves 64-byte aligned pieces of a block, or only counts their bytes where the block is null.
class Carver {
 public:
  explicit Carver(void* block) : block_(static_cast<char*>(block)) {}
  template <typename T>
  T* Take(int64_t count) {
    char* p = block_ == nullptr ? nullptr : block_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(p);
  }
  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_PLAN_H_
