#include "kernels/cuda/flash/heuristics.h"

#include <algorithm>

#include "kernels/cuda/flash/sm80/tile.h"

namespace attend::cuda::flash {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Decode is bound by reading K and V. A problem alone should keep the memory busy, which takes about 64
// CTAs with 64 KB on their way in each; but each split costs a partial state written and read again, and the
// start and end of a CTA (4 microseconds on an H200), so that a split does not read less than 64 KB. Past
// 1 MB, shorter splits end the launch more evenly than longer ones save.
constexpr int64_t kDecodeCtas = 64;
constexpr int64_t kDecodeSplitBytesMin = 64 << 10;
constexpr int64_t kDecodeSplitBytesMax = 1 << 20;

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

int64_t SplitKeys(Path path, const Launch& launch, const Problem& p, int64_t row_tiles, int64_t keys) {
  if (path == Path::kDecode) {
    const int64_t key_bytes = (launch.head_dim + launch.v_head_dim) * SizeOf(launch.dtype);
    const int64_t share = keys * p.kv_heads * key_bytes / kDecodeCtas;
    return std::clamp(share, kDecodeSplitBytesMin, kDecodeSplitBytesMax) / key_bytes;
  }
  const int64_t splits = kPrefillCtas / (row_tiles * p.kv_heads);
  return splits < 2 ? keys : std::max(CeilDiv(keys, splits), kPrefillSplitKeysMin);
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
  const int64_t wanted = RoundUp(SplitKeys(path, launch, p, cut.row_tiles, keys), tile.keys);
  // As many splits as that gives, but of even length.
  cut.split_keys = RoundUp(CeilDiv(keys, CeilDiv(keys, wanted)), tile.keys);
  cut.splits = CeilDiv(keys, cut.split_keys);
  return cut;
}

}  // namespace attend::cuda::flash
