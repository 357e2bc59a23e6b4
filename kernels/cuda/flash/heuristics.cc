#include "kernels/cuda/flash/heuristics.h"

#include <algorithm>

#include "kernels/cuda/flash/sm80/tile.h"

namespace attend::cuda::flash {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Decode is bound by reading K and V. A large problem is cut into what runs at once, all of one length: a
// second wave of a few CTAs would read with most of the chip idle (132 multiprocessors; 128 keeps clear of
// rounding up). A small one is cut into no shorter splits than what starting, ending and merging a CTA costs
// beside its reading, unless it would then leave nearly all of the chip idle. Measured on an H200: README.md.
constexpr int64_t kDecodeMultiprocessors = 128;
constexpr int64_t kDecodeCtasMin = 32;
constexpr int64_t kDecodeSplitBytesMin = 64 << 10;
constexpr int64_t kDecodeSplitBytesMax = 2 << 20;

struct DecodeShape {
  int64_t ctas_per_multiprocessor;  // that run at once
  int64_t split_bytes;              // of K and V, that pay for a CTA
};

template <int kHeadDim>
constexpr DecodeShape DecodeShapeOf() {
  return {DecodeTileOf<kHeadDim>::kBlocksPerSm, kHeadDim > 128 ? int64_t{1} << 20 : int64_t{512} << 10};
}

DecodeShape DecodeShapeOf(int head_dim_class) {
  switch (head_dim_class) {
    case 64:
      return DecodeShapeOf<64>();
    case 96:
      return DecodeShapeOf<96>();
    case 128:
      return DecodeShapeOf<128>();
    case 192:
      return DecodeShapeOf<192>();
    default:
      return DecodeShapeOf<256>();
  }
}

// Prefill is bound by arithmetic: it is split only where its tiles would leave most of a chip idle, and not
// into fewer keys than what makes a tile's partial state cheap beside the tile's own work.
constexpr int64_t kPrefillCtas = 128;
constexpr int64_t kPrefillSplitKeysMin = 512;

template <typename Tile>
TileShape ShapeOf() {
  return {.rows = Tile::kRows, .keys = Tile::kKeys};
}

template <int kHeadDim>
TileShape ShapeOf(Path path, bool features) {
  if (path == Path::kDecode) return ShapeOf<DecodeTileOf<kHeadDim>>();
  return features ? ShapeOf<PrefillTileOf<kHeadDim, true>>() : ShapeOf<PrefillTileOf<kHeadDim, false>>();
}

// Into how many splits the keys are cut, each of a whole number of tiles of so many keys.
int64_t DecodeSplits(const Launch& launch, const Problem& p, int64_t keys, int64_t tile_keys) {
  const int64_t key_bytes = (launch.head_dim + launch.v_head_dim) * SizeOf(launch.dtype);
  const int64_t bytes = keys * p.kv_heads * key_bytes;
  const DecodeShape shape = DecodeShapeOf(HeadDimClass(launch.head_dim, launch.v_head_dim));
  const int64_t wave = kDecodeMultiprocessors * shape.ctas_per_multiprocessor;
  const int64_t share = std::max(bytes / wave, std::min(bytes / kDecodeCtasMin, shape.split_bytes));
  const int64_t split_bytes = std::clamp(share, kDecodeSplitBytesMin, kDecodeSplitBytesMax);
  const int64_t splits = CeilDiv(keys, RoundUp(split_bytes / key_bytes, tile_keys));
  if (split_bytes != shape.split_bytes) return splits;
  // Batches often hold a power of two of such problems, over a power of two of KV heads. With as many CTAs as
  // run at once on a multiprocessor, times a power of two, they are whole waves.
  int64_t rounded = std::min(splits, shape.ctas_per_multiprocessor);
  while (2 * rounded <= splits) rounded *= 2;
  return rounded;
}

int64_t PrefillSplits(const Problem& p, int64_t row_tiles, int64_t keys, int64_t tile_keys) {
  const int64_t splits = kPrefillCtas / (row_tiles * p.kv_heads);
  if (splits < 2) return 1;
  return CeilDiv(keys, RoundUp(std::max(CeilDiv(keys, splits), kPrefillSplitKeysMin), tile_keys));
}

}  // namespace

int HeadDimClass(int32_t head_dim, int32_t v_head_dim) {
  const int32_t widest = std::max(head_dim, v_head_dim);
  for (const int c : {64, 96, 128, 192}) {
    if (widest <= c) return c;
  }
  return 256;
}

bool HasFeatures(const Problem& p) {
  return p.softcap > 0 || p.bias != nullptr || p.mask != nullptr || p.alibi_slopes != nullptr;
}

TileShape TileOf(Path path, int head_dim_class, bool features) {
  switch (head_dim_class) {
    case 64:
      return ShapeOf<64>(path, features);
    case 96:
      return ShapeOf<96>(path, features);
    case 128:
      return ShapeOf<128>(path, features);
    case 192:
      return ShapeOf<192>(path, features);
    default:
      return ShapeOf<256>(path, features);
  }
}

Cut CutProblem(Path path, const Launch& launch, const Problem& p) {
  const TileShape tile = TileOf(path, HeadDimClass(launch.head_dim, launch.v_head_dim), HasFeatures(p));
  const KeyRange visible = VisibleKeys(p, 0, p.q_len);
  Cut cut;
  cut.row_tiles = CeilDiv(PackedRows(p), tile.rows);
  cut.keys_begin = visible.begin / tile.keys * tile.keys;
  const int64_t keys = std::max<int64_t>(visible.end - cut.keys_begin, 1);
  const int64_t splits = path == Path::kDecode ? DecodeSplits(launch, p, keys, tile.keys)
                                               : PrefillSplits(p, cut.row_tiles, keys, tile.keys);
  cut.split_keys = RoundUp(CeilDiv(keys, splits), tile.keys);
  cut.splits = CeilDiv(keys, cut.split_keys);
  return cut;
}

}  // namespace attend::cuda::flash
