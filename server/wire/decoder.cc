#include "server/wire/decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/wire/request_fields.h"
#include "server/wire/slice_stream.h"
#include "server/wire/validate.h"
#include "server/wire/violations.h"

namespace attend::server {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors travel little-endian and are not swapped");

constexpr int64_t kTensorAlignment = 256;

int64_t AlignUp(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Copies bytes from the stream's position on.
bool CopyFrom(SliceStream* stream, int64_t bytes, std::byte* to) {
  while (bytes > 0) {
    const void* data = nullptr;
    int size = 0;
    if (!stream->Next(&data, &size)) return false;
    const auto step = static_cast<int>(std::min<int64_t>(size, bytes));
    std::memcpy(to, data, static_cast<size_t>(step));
    if (step < size) stream->BackUp(size - step);
    to += step;
    bytes -= step;
  }
  return true;
}

// gzip and zlib streams begin like no AttendRequest does.
absl::string_view CompressionHint(SliceStream* stream) {
  const void* data = nullptr;
  int size = 0;
  if (!stream->Next(&data, &size)) return "";
  const auto* bytes = static_cast<const uint8_t*>(data);
  const bool gzip = size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
  const bool zlib = size >= 2 && bytes[0] == 0x78 && ((bytes[0] << 8) + bytes[1]) % 31 == 0;
  return gzip || zlib ? "looks compressed; compressed requests are refused" : "";
}

// The first byte of a mask that is neither 0 nor 1, or bytes.
int64_t FirstNotBool(const uint8_t* mask, int64_t bytes) {
  uint8_t seen = 0;  // without a branch: the usual mask is right, and read at memory speed
  for (int64_t i = 0; i < bytes; ++i) seen |= mask[i];
  if (seen <= 1) return bytes;
  return std::find_if(mask, mask + bytes, [](uint8_t byte) { return byte > 1; }) - mask;
}

}  // namespace

struct AttendDecoder::State {
  State(std::vector<grpc::Slice> slices, const DecodeLimits& limits)
      : stream(std::move(slices)), limits(limits) {}

  SliceStream stream;
  DecodeLimits limits;
  RequestFields fields;
  Call call;
  std::array<int64_t, kTensorCount> block_offset = {};
  std::array<TensorArrival, kTensorCount> arrivals;
  int64_t weight_rows_offset = 0;
  int64_t input_bytes = 0;

  void PlaceInputs() {
    for (size_t i = 0; i < kTensorCount; ++i) {
      block_offset[i] = input_bytes;
      input_bytes += AlignUp(fields.tensors[i].data_bytes);
    }
    weight_rows_offset = input_bytes;
    input_bytes = std::max(input_bytes + AlignUp(call.weight_rows_bytes()), kTensorAlignment);
  }

  // Points the inputs into the block, and fills what does not come from the message's slices.
  absl::Status PointInputs(const HostBlock& inputs, CallTensors* tensors) const {
    if (inputs.size() < input_bytes) {
      return absl::InternalError(
          absl::StrCat("a block of ", inputs.size(), " bytes for inputs of ", input_bytes));
    }
    std::byte* const block = inputs.data();
    const auto at = [&](TensorId id) -> const void* { return block + block_offset[static_cast<size_t>(id)]; };
    tensors->q = at(TensorId::kQ);
    tensors->k = at(TensorId::kK);
    tensors->v = at(TensorId::kV);
    if (call.bias) tensors->bias = at(TensorId::kBias);
    if (call.mask) tensors->mask = static_cast<const uint8_t*>(at(TensorId::kMask));
    if (call.alibi_slopes) tensors->alibi_slopes = static_cast<const float*>(at(TensorId::kAlibiSlopes));
    if (call.sinks) tensors->sinks = static_cast<const float*>(at(TensorId::kSinks));
    if (!call.weight_rows.empty()) {
      tensors->weight_rows = reinterpret_cast<const int64_t*>(block + weight_rows_offset);
      std::memcpy(block + weight_rows_offset, call.weight_rows.data(),
                  static_cast<size_t>(call.weight_rows_bytes()));
    }
    return absl::OkStatus();
  }

  // The tensors that have bytes, in the order of the message.
  absl::InlinedVector<TensorId, kTensorCount> MessageOrder() const {
    absl::InlinedVector<TensorId, kTensorCount> order;
    for (size_t i = 0; i < kTensorCount; ++i) {
      if (fields.tensors[i].data_bytes > 0) order.push_back(static_cast<TensorId>(i));
    }
    std::sort(order.begin(), order.end(), [this](TensorId a, TensorId b) {
      return fields.tensor(a).data_offset < fields.tensor(b).data_offset;
    });
    return order;
  }
};

AttendDecoder::AttendDecoder(grpc::ByteBuffer* message, const DecodeLimits& limits) {
  std::vector<grpc::Slice> slices;
  // A buffer that cannot be read has no slices: an empty request, which fails for want of q.
  if (!message->Dump(&slices).ok()) slices.clear();
  message->Clear();
  state_ = std::make_unique<State>(std::move(slices), limits);
}

AttendDecoder::~AttendDecoder() = default;

absl::Status AttendDecoder::ReadSpecs() {
  State& s = *state_;
  ViolationList violations;
  const int64_t limit = std::min<int64_t>(s.limits.request_bytes_max, std::numeric_limits<int32_t>::max());
  if (s.stream.size() > limit) {
    violations.Add(kRequestPath, "has ", s.stream.size(), " bytes; at most ", limit);
    return violations.Take();
  }
  if (!ReadRequestFields(&s.stream, s.stream.size(), s.limits, &s.fields, &violations)) {
    s.stream.Rewind(false);
    if (const absl::string_view hint = CompressionHint(&s.stream); !hint.empty()) {
      violations.Add(kRequestPath, hint);
    }
    return violations.Take();
  }
  ValidateRequest(s.fields, s.limits, &s.call, &violations);
  if (!violations.empty()) return violations.Take();
  s.PlaceInputs();
  return absl::OkStatus();
}

const Call& AttendDecoder::call() const { return state_->call; }

int64_t AttendDecoder::input_bytes() const { return state_->input_bytes; }

TensorPiece::~TensorPiece() { DropSlices(slices_); }

std::span<const std::byte> TensorPiece::Copy() {
  SliceStream stream(std::move(slices_));
  stream.Rewind(true);
  // Slices were measured when the piece was cut; to be short of bytes now is a fault of ours.
  if (!stream.Skip(static_cast<int>(skip_)) || !CopyFrom(&stream, bytes_, to_)) abort();
  return --tensor_->pieces_left == 0 ? tensor_->bytes : std::span<const std::byte>();
}

absl::StatusOr<std::vector<TensorPiece>> AttendDecoder::CutTensors(const HostBlock& inputs,
                                                                   CallTensors* tensors,
                                                                   int64_t piece_bytes) {
  State& s = *state_;
  if (absl::Status status = s.PointInputs(inputs, tensors); !status.ok()) return status;
  std::vector<grpc::Slice> slices = s.stream.Take();
  std::vector<TensorPiece> pieces;
  size_t first = 0;  // slice that holds the next piece's first byte, or lies before it
  int64_t at = 0;    // where in the message it begins
  for (const TensorId id : s.MessageOrder()) {
    const TensorField& field = s.fields.tensor(id);
    std::byte* const to = inputs.data() + s.block_offset[static_cast<size_t>(id)];
    TensorArrival& tensor = s.arrivals[static_cast<size_t>(id)];
    tensor.bytes = {to, static_cast<size_t>(field.data_bytes)};
    for (int64_t done = 0; done < field.data_bytes; done += piece_bytes) {
      const int64_t bytes = std::min(piece_bytes, field.data_bytes - done);
      const int64_t begin = field.data_offset + done;
      for (; at + static_cast<int64_t>(slices[first].size()) <= begin; ++first) {
        at += static_cast<int64_t>(slices[first].size());
      }
      std::vector<grpc::Slice> own;
      int64_t end = at;
      for (size_t i = first; end < begin + bytes; ++i) {
        own.push_back(slices[i]);
        end += static_cast<int64_t>(slices[i].size());
      }
      pieces.emplace_back(&tensor, std::move(own), begin - at, to + done, bytes);
      ++tensor.pieces_left;
    }
  }
  DropSlices(slices);  // but for those that pieces hold
  return pieces;
}

absl::Status AttendDecoder::CheckTensors(const CallTensors& tensors) const {
  ViolationList violations;
  const int64_t bytes = tensors.mask == nullptr ? 0 : state_->fields.tensor(TensorId::kMask).data_bytes;
  const int64_t bad = FirstNotBool(tensors.mask, bytes);
  if (bad < bytes) {
    violations.Add(DataName(TensorId::kMask), "byte ", bad, " is ", tensors.mask[bad], "; must be 0 or 1");
  }
  return violations.Take();
}

absl::Status AttendDecoder::ReadTensors(const HostBlock& inputs, CallTensors* tensors) {
  State& s = *state_;
  if (absl::Status status = s.PointInputs(inputs, tensors); !status.ok()) return status;
  s.stream.Rewind(true);
  for (const TensorId id : s.MessageOrder()) {
    const TensorField& field = s.fields.tensor(id);
    const auto gap = static_cast<int>(field.data_offset - s.stream.ByteCount());
    std::byte* const to = inputs.data() + s.block_offset[static_cast<size_t>(id)];
    // Fields were found in these slices; to be short of bytes now is a fault of ours.
    if (!s.stream.Skip(gap) || !CopyFrom(&s.stream, field.data_bytes, to)) abort();
  }
  return CheckTensors(*tensors);
}

int64_t OutputBytes(const Call& call) {
  return std::max(AlignUp(call.out_bytes()) + AlignUp(call.lse_bytes()) + AlignUp(call.weights_bytes()),
                  kTensorAlignment);
}

void PlaceOutputs(const Call& call, std::byte* outputs, CallTensors* tensors) {
  std::byte* at = outputs;
  tensors->out = at;
  at += AlignUp(call.out_bytes());
  if (call.return_lse) tensors->lse = reinterpret_cast<float*>(at);
  at += AlignUp(call.lse_bytes());
  if (call.return_weights || !call.weight_rows.empty()) tensors->weights = reinterpret_cast<float*>(at);
}

}  // namespace attend::server
