#include "server/device/cuda/batch_plan.h"

#include <algorithm>
#include <cstddef>

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

template <typename T>
void Place(T*& pointer, int64_t offset, std::byte* base) {
  pointer = offset < 0 ? nullptr : reinterpret_cast<T*>(base + offset);
}

}  // namespace

BatchPlan PlanBatch(std::span<const BatchItem> batch) {
  BatchPlan plan;
  plan.tensors.resize(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const Call& call = *batch[i].call;
    const CallTensors& host = *batch[i].tensors;
    PlacePieces(Inputs(call, host), plan.tensors[i], plan.bytes, plan.in);
    PlacePieces(Outputs(call, host), plan.tensors[i], plan.bytes, plan.out);
  }
  return plan;
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
