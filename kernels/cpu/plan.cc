#include "kernels/cpu/plan.h"

namespace attend::cpu {
namespace {

void Finish(Tile& tile) {
  for (int i = tile.lanes; i < kLanesMax; ++i) {
    tile.row[i] = tile.row[tile.lanes - 1];
    tile.head[i] = tile.head[tile.lanes - 1];
  }
  tile.keys = VisibleKeys(*tile.problem, tile.row[0], tile.row[tile.lanes - 1] + 1);
}

constexpr int64_t kScoreFloatsMin = (64 << 20) / 4;

// Where FLASH starts to split, and the least that a split is worth.
constexpr int64_t kSplitQueries = 16;
constexpr int64_t kKeysPerSplitMin = 1024;

}  // namespace

Tile MakeTile(const Problem& problem, int64_t kv_head, int64_t begin, int lanes_per_tile) {
  const int64_t group = Group(problem);
  Tile tile;
  tile.problem = &problem;
  tile.kv_head = kv_head;
  tile.lanes = static_cast<int>(std::min<int64_t>(lanes_per_tile, problem.q_len * group - begin));
  for (int i = 0; i < tile.lanes; ++i) {
    tile.row[i] = (begin + i) / group;
    tile.head[i] = kv_head * group + (begin + i) % group;
  }
  Finish(tile);
  return tile;
}

Tile MakeRowTile(const Problem& problem, int64_t kv_head, int64_t row, int64_t begin, int lanes_per_tile) {
  const int64_t group = Group(problem);
  Tile tile;
  tile.problem = &problem;
  tile.kv_head = kv_head;
  tile.lanes = static_cast<int>(std::min<int64_t>(lanes_per_tile, group - begin));
  for (int i = 0; i < tile.lanes; ++i) {
    tile.row[i] = row;
    tile.head[i] = kv_head * group + begin + i;
  }
  Finish(tile);
  return tile;
}

void Units::Add(const Problem& p) {
  const int64_t tiles = (p.q_len * Group(p) + lanes_per_tile_ - 1) / lanes_per_tile_;
  problems_.push_back(&p);
  ends_.push_back(count() + tiles * p.kv_heads);
}

Tile Units::At(int64_t unit) const {
  const size_t at = Find(unit);
  const Problem& p = *problems_[at];
  const int64_t within = unit - (at == 0 ? 0 : ends_[at - 1]);
  const int64_t tiles = (p.q_len * Group(p) + lanes_per_tile_ - 1) / lanes_per_tile_;
  return MakeTile(p, within / tiles, (tiles - 1 - within % tiles) * lanes_per_tile_, lanes_per_tile_);
}

int Splits(const Problem& problem) {
  if (problem.q_len == 0 || problem.q_len > kSplitQueries) return 1;
  const int64_t per_split = KeysPerSplit(problem);
  return static_cast<int>(std::max<int64_t>(1, (problem.kv_len + per_split - 1) / per_split));
}

int64_t KeysPerSplit(const Problem& problem) {
  const int64_t even = (problem.kv_len + kSplitsMax - 1) / kSplitsMax;
  const int64_t whole = (even + kKeysPerTile - 1) / kKeysPerTile * kKeysPerTile;
  return std::max(kKeysPerSplitMin, whole);
}

int64_t ScoreFloats(const Problem& problem, int lanes_per_tile) {
  const int64_t keys = (problem.kv_len + kKeyPadding - 1) / kKeyPadding * kKeyPadding;
  return lanes_per_tile * (keys + 2);
}

int64_t ScoreFloats(const Launch& launch, int lanes_per_tile) {
  int64_t total = 0, head_max = 0;
  for (const Problem& p : launch.problems) {
    const int64_t tiles = (p.q_len * Group(p) + lanes_per_tile - 1) / lanes_per_tile;
    const int64_t head = tiles * ScoreFloats(p, lanes_per_tile);
    head_max = std::max(head_max, head);
    total += head * p.kv_heads;
  }
  return std::min(total, std::max(head_max, kScoreFloatsMin));
}

Round MakeRound(const Units& units, int64_t first, int lanes_per_tile, int64_t floats) {
  Round round;
  round.first = first;
  round.offsets = {0};
  for (int64_t unit = first; unit < units.count(); ++unit) {
    const int64_t end = round.offsets.back() + ScoreFloats(units.ProblemOf(unit), lanes_per_tile);
    if (end > floats && round.tiles() > 0) break;
    round.offsets.push_back(end);
  }
  return round;
}

}  // namespace attend::cpu
