#include "server/device/cuda/batch_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "server/device/cuda/staging.h"

namespace attend::server {
namespace {

// A gap up to this many bytes is cheaper to copy than another copy is to start.
constexpr int64_t kGapBytesMax = 512;

struct Piece {
  std::byte* host;
  int64_t bytes;
  int64_t TensorOffsets::*offset;
};

std::vector<Piece> Inputs(const Call& c, const CallTensors& t) {
  std::vector<Piece> pieces;
  const auto add = [&](const void* host, int64_t bytes, int64_t TensorOffsets::*offset) {
    if (host == nullptr || bytes == 0) return;
    // Inputs are only read; one list of pieces serves both directions.
    pieces.push_back({static_cast<std::byte*>(const_cast<void*>(host)), bytes, offset});
  };
  add(t.q, c.q_bytes(), &TensorOffsets::q);
  add(t.k, c.k_bytes(), &TensorOffsets::k);
  add(t.v, c.v_bytes(), &TensorOffsets::v);
  add(t.bias, c.bias_bytes(), &TensorOffsets::bias);
  add(t.mask, c.mask_bytes(), &TensorOffsets::mask);
  add(t.alibi_slopes, c.alibi_bytes(), &TensorOffsets::alibi_slopes);
  add(t.sinks, c.sinks_bytes(), &TensorOffsets::sinks);
  add(t.weight_rows, c.weight_rows_bytes(), &TensorOffsets::weight_rows);
  return pieces;
}

std::vector<Piece> Outputs(const Call& c, const CallTensors& t) {
  std::vector<Piece> pieces;
  const auto add = [&](void* host, int64_t bytes, int64_t TensorOffsets::*offset) {
    if (host != nullptr && bytes > 0) {
      pieces.push_back({static_cast<std::byte*>(host), bytes, offset});
    }
  };
  add(t.out, c.out_bytes(), &TensorOffsets::out);
  add(t.lse, c.lse_bytes(), &TensorOffsets::lse);
  add(t.weights, c.weights_bytes(), &TensorOffsets::weights);
  return pieces;
}

// Places the pieces on the device in their host order, keeping their distances inside one copy, and their
// alignment.
void PlacePieces(std::vector<Piece> pieces, TensorOffsets& tensors, int64_t& end,
                 std::vector<CopyRange>& copies) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.host < b.host; });
  const size_t first = copies.size();
  for (const Piece& piece : pieces) {
    CopyRange* last = copies.size() > first ? &copies.back() : nullptr;
    const bool joins = last != nullptr && piece.host >= last->host + last->bytes &&
                       piece.host - (last->host + last->bytes) <= kGapBytesMax;
    if (!joins) {
      const auto misaligned =
          static_cast<int64_t>(reinterpret_cast<uintptr_t>(piece.host) % kDeviceAlignment);
      copies.push_back({piece.host, end + misaligned, 0});
      last = &copies.back();
    }
    const int64_t inside = piece.host - last->host;
    last->bytes = inside + piece.bytes;
    tensors.*piece.offset = last->device_offset + inside;
    end = AlignForDevice(last->device_offset + last->bytes);
  }
}

// A tensor on the device, and where the plan notes its offset.
struct StagedPiece {
  std::byte* device;
  int64_t bytes;
  int64_t* offset;
};

// Moves the pieces that have been staged from one list to the other.
void SplitStaged(const CudaStaging& staging, TensorOffsets& tensors, std::vector<Piece>& pieces,
                 std::vector<StagedPiece>& staged) {
  std::erase_if(pieces, [&](const Piece& piece) {
    std::byte* const device = staging.Find(piece.host, piece.bytes);
    if (device != nullptr) staged.push_back({device, piece.bytes, &(tensors.*piece.offset)});
    return device != nullptr;
  });
}

// Gives the pieces offsets behind the plan's bytes, with their alignment and a gap, so that the address one
// past a tensor's end is its own.
void PlaceStaged(const std::vector<StagedPiece>& staged, BatchPlan& plan) {
  int64_t end = plan.bytes;
  for (const StagedPiece& piece : staged) {
    const auto misaligned =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(piece.device) % kDeviceAlignment);
    const int64_t offset = end + kDeviceAlignment + misaligned;
    plan.staged.push_back({offset, piece.device});
    *piece.offset = offset;
    end = AlignForDevice(offset + piece.bytes);
  }
}

template <typename T>
void Place(T*& pointer, int64_t offset, std::byte* base) {
  pointer = offset < 0 ? nullptr : reinterpret_cast<T*>(base + offset);
}

}  // namespace

BatchPlan PlanBatch(std::span<const BatchItem> batch) {
  BatchPlan plan;
  plan.tensors.resize(batch.size());
  std::vector<StagedPiece> staged;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Call& call = *batch[i].call;
    const CallTensors& host = *batch[i].tensors;
    std::vector<Piece> inputs = Inputs(call, host);
    if (batch[i].staging != nullptr) SplitStaged(AsCuda(*batch[i].staging), plan.tensors[i], inputs, staged);
    PlacePieces(std::move(inputs), plan.tensors[i], plan.bytes, plan.in);
    PlacePieces(Outputs(call, host), plan.tensors[i], plan.bytes, plan.out);
  }
  PlaceStaged(staged, plan);
  return plan;
}

std::byte* BatchPlan::Address(int64_t offset, std::byte* base) const {
  const auto after =
      std::upper_bound(staged.begin(), staged.end(), offset,
                       [](int64_t searched, const StagedRange& range) { return searched < range.offset; });
  return after == staged.begin() ? base + offset : after[-1].device + (offset - after[-1].offset);
}

int64_t TensorDeviceBytes(const Call& c) {
  int64_t bytes = 0;
  for (int64_t tensor :
       {c.q_bytes(), c.k_bytes(), c.v_bytes(), c.bias_bytes(), c.mask_bytes(), c.alibi_bytes(),
        c.sinks_bytes(), c.weight_rows_bytes(), c.out_bytes(), c.lse_bytes(), c.weights_bytes()}) {
    // A tensor may start anywhere within an aligned unit, and ends within one.
    if (tensor > 0) bytes += AlignForDevice(tensor) + kDeviceAlignment;
  }
  return bytes;
}

CallTensors AtAddress(const TensorOffsets& offsets, std::byte* base) {
  CallTensors t;
  Place(t.q, offsets.q, base);
  Place(t.k, offsets.k, base);
  Place(t.v, offsets.v, base);
  Place(t.bias, offsets.bias, base);
  Place(t.mask, offsets.mask, base);
  Place(t.alibi_slopes, offsets.alibi_slopes, base);
  Place(t.sinks, offsets.sinks, base);
  Place(t.weight_rows, offsets.weight_rows, base);
  Place(t.out, offsets.out, base);
  Place(t.lse, offsets.lse, base);
  Place(t.weights, offsets.weights, base);
  return t;
}

}  // namespace attend::server
