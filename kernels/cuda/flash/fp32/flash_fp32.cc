#include "kernels/cuda/flash/fp32/flash_fp32.h"

#include "kernels/cuda/flash/fp32/tile.h"

namespace attend::cuda::flash_fp32 {
namespace {

int64_t Divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The numbers of Tile<kDim> by value.
struct Sizes {
  int64_t keys, bytes;
};
template <int kDim>
constexpr Sizes kSizes = {Tile<kDim>::kKeys, Tile<kDim>::kBytes};
Sizes SizesOf(const Launch& launch) {
  const int dim = PaddedDim(launch);
  return dim == 64 ? kSizes<64> : dim == 128 ? kSizes<128> : kSizes<256>;
}

int64_t RowsOf(int groups) { return groups == 2 ? Tile<64, 2>::kRows : Tile<64, 1>::kRows; }
int64_t RowTiles(const Problem& p, int groups) { return p.q_heads * Divide(p.q_len, RowsOf(groups)); }

// Fewer blocks than this of 128 rows leave warps of a GPU without work that blocks of 64 would give them. A
// row has the same bits either way.
constexpr int64_t kBlocksMin = 192;

// Of the tile that a launch runs with.
int RowGroups(const Launch& launch) {
  const int most = MostGroups(PaddedDim(launch));
  int64_t blocks = 0;
  for (const Problem& p : launch.problems) blocks += RowTiles(p, most);
  return blocks < kBlocksMin ? 1 : most;
}

int64_t KeyTiles(const Problem& p, const Sizes& sizes) { return p.kv_heads * Divide(p.kv_len, sizes.keys); }

bool Supports(const Launch& launch, const Problem& p, const DeviceProperties& device) {
  // Rows and keys are counted in 32 bits inside a head; no GPU holds longer ones.
  constexpr int64_t kLengthMax = int64_t{1} << 30;
  return launch.kernel == Kernel::kFlash && launch.dtype == DataType::kFp32 &&
         device.compute_capability >= 80 && p.q_len <= kLengthMax && p.kv_len <= kLengthMax;
}

WorkspaceNeed NeedOf(const Launch& launch, const DeviceProperties&) {
  const int64_t lists = 2 * AlignWorkspace(ListBytes(launch.problems.size()));
  return {AlignWorkspace(SplitBytes(launch)) + lists, lists};
}
TileShape TileOf(const Launch& launch, const DeviceProperties&) {
  return TileShape{static_cast<int32_t>(RowsOf(RowGroups(launch))),
                   static_cast<int32_t>(SizesOf(launch).keys)};
}

absl::Status Enqueue(const Launch& launch, const DeviceProperties&, const Workspace& workspace,
                     Stream stream) {
  const int groups = RowGroups(launch);
  Carver carver(workspace);
  const char* tiles = nullptr;
  if (auto s = EnqueueSplit(launch, carver, stream, &tiles); !s.ok()) return s;
  ProblemList list;
  int64_t blocks = 0, offset = 0;
  auto fill = [&](size_t, ProblemItem& item) {
    item.offset = offset;
    offset += SplitBytes(launch, item.problem);
    return RowTiles(item.problem, groups);
  };
  const int64_t bytes = ListBytes(launch.problems.size());
  if (auto s =
          MakeList(launch.problems, fill, carver.Device(bytes), carver.Host(bytes), stream, &list, &blocks);
      !s.ok()) {
    return s;
  }
  switch (PaddedDim(launch)) {
    case 64:
      return groups == 1 ? EnqueueFlash<64, 1>(launch, list, blocks, tiles, stream)
                         : EnqueueFlash<64, 2>(launch, list, blocks, tiles, stream);
    case 128:
      return EnqueueFlash<128, 1>(launch, list, blocks, tiles, stream);
    default:
      return EnqueueFlash<256, 1>(launch, list, blocks, tiles, stream);
  }
}

}  // namespace

int64_t SplitBytes(const Launch& launch, const Problem& p) {
  const Sizes sizes = SizesOf(launch);
  return KeyTiles(p, sizes) * sizes.bytes;
}

int64_t SplitBytes(const Launch& launch) {
  int64_t bytes = 0;
  for (const Problem& p : launch.problems) bytes += SplitBytes(launch, p);
  return bytes;
}

const Variant kVariant = {
    .name = "flash_fp32",
    .supported = "FLASH fp32: every head_dim, lengths up to 2^30, compute capability 8.0 and later",
    .supports = Supports,
    .prefers = nullptr,
    .workspace_need = NeedOf,
    .tile = TileOf,
    .enqueue = Enqueue,
};

}  // namespace attend::cuda::flash_fp32
