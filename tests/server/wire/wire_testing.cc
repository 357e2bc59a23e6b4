#include "tests/server/wire/wire_testing.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/support/slice.h"

namespace attend::server {
namespace {

int64_t ElementBytes(v1::DataType dtype) {
  return dtype == v1::DATA_TYPE_BOOL ? 1 : dtype == v1::DATA_TYPE_FP32 ? 4 : 2;
}

void SetTensor(v1::DataType dtype, const std::vector<int64_t>& shape, Rng& rng, v1::TensorSpec* spec,
               std::string* data) {
  spec->set_dtype(dtype);
  spec->mutable_shape()->Assign(shape.begin(), shape.end());
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  data->resize(static_cast<size_t>(elements * ElementBytes(dtype)));
  for (char& c : *data) c = static_cast<char>(dtype == v1::DATA_TYPE_BOOL ? rng() % 2 : rng());
}

int64_t Pick(Rng& rng, int64_t from, int64_t to) {
  return from + static_cast<int64_t>(rng() % static_cast<uint64_t>(to - from + 1));
}
bool Maybe(Rng& rng) { return rng() % 2 == 0; }

// A list of `count` lengths that add up to anything; returns the sum.
int64_t AddLengths(int64_t count, int64_t max, Rng& rng, google::protobuf::RepeatedField<int64_t>* lengths) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += *lengths->Add() = Pick(rng, 0, max);
  return sum;
}

struct Sizes {
  int64_t batch, q_heads, kv_heads, q_len, kv_len, dim, v_dim;
};

void AddScoreTensors(const Sizes& s, v1::DataType dtype, Rng& rng, v1::AttendRequest* r) {
  const auto shape = [&] {
    return std::vector<int64_t>{Maybe(rng) ? 1 : s.batch, Maybe(rng) ? 1 : s.q_heads,
                                Maybe(rng) ? 1 : s.q_len, Maybe(rng) ? 1 : s.kv_len};
  };
  if (Maybe(rng)) {
    SetTensor(Maybe(rng) ? v1::DATA_TYPE_FP32 : dtype, shape(), rng, r->mutable_bias(),
              r->mutable_bias_data());
  }
  if (Maybe(rng)) SetTensor(v1::DATA_TYPE_BOOL, shape(), rng, r->mutable_mask(), r->mutable_mask_data());
}

void AddOptions(const Sizes& s, Rng& rng, v1::AttendRequest* r) {
  r->set_kernel(static_cast<v1::Kernel>(rng() % 5));
  r->set_causal(static_cast<v1::CausalMode>(rng() % 4));
  if (Maybe(rng)) r->set_scale(static_cast<float>(Pick(rng, -4, 4)) / 8);
  if (Maybe(rng)) r->set_softcap(static_cast<float>(Pick(rng, 1, 50)));
  if (Maybe(rng)) r->set_window_left(Pick(rng, 0, 1) != 0 ? Pick(rng, 0, 9) : INT64_MAX);
  if (Maybe(rng)) r->set_window_right(Pick(rng, 0, 9));
  if (Maybe(rng)) {
    const bool per_batch = Maybe(rng);
    SetTensor(v1::DATA_TYPE_FP32,
              per_batch ? std::vector<int64_t>{s.batch, s.q_heads} : std::vector<int64_t>{s.q_heads}, rng,
              r->mutable_alibi_slopes(), r->mutable_alibi_slopes_data());
  }
  if (Maybe(rng)) {
    SetTensor(v1::DATA_TYPE_FP32, {s.q_heads}, rng, r->mutable_sinks(), r->mutable_sinks_data());
  }
  r->set_return_lse(Maybe(rng));
}

// --- serialisation by hand ---

void AppendVarint(uint64_t value, std::string* to) {
  for (; value >= 128; value >>= 7) to->push_back(static_cast<char>(value | 128));
  to->push_back(static_cast<char>(value));
}
std::string Varint(int number, int64_t value) {
  std::string out;
  AppendVarint(static_cast<uint64_t>(number) << 3, &out);
  AppendVarint(static_cast<uint64_t>(value), &out);
  return out;
}
std::string Bytes(int number, absl::string_view value) {
  std::string out;
  AppendVarint(static_cast<uint64_t>(number) << 3 | 2, &out);
  AppendVarint(value.size(), &out);
  return out.append(value.data(), value.size());
}
std::string Float(int number, float value) {
  std::string out;
  AppendVarint(static_cast<uint64_t>(number) << 3 | 5, &out);
  return out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Chunks of one field, whose order among themselves matters.
using Chunks = std::vector<std::string>;

// Interleaves fields at random, each field's chunks in order.
std::string Interleave(std::vector<Chunks> fields, Rng& rng) {
  std::string out;
  std::vector<size_t> next(fields.size(), 0);
  for (;;) {
    std::vector<size_t> open;
    for (size_t i = 0; i < fields.size(); ++i) {
      if (next[i] < fields[i].size()) open.push_back(i);
    }
    if (open.empty()) return out;
    const size_t i = open[rng() % open.size()];
    out += fields[i][next[i]++];
  }
}

// A repeated int64 as single values and packed runs.
Chunks ListChunks(int number, const google::protobuf::RepeatedField<int64_t>& list, Rng& rng) {
  Chunks chunks;
  for (int i = 0; i < list.size();) {
    if (Maybe(rng)) {
      chunks.push_back(Varint(number, list[i++]));
      continue;
    }
    std::string run;
    const int end = i + static_cast<int>(Pick(rng, 0, list.size() - i));
    while (i < end) AppendVarint(static_cast<uint64_t>(list[i++]), &run);
    chunks.push_back(Bytes(number, run));
  }
  return chunks;
}

// A spec in parts that merge to it.
Chunks SpecChunks(int number, const v1::TensorSpec& spec, Rng& rng) {
  std::vector<Chunks> fields = {ListChunks(2, spec.shape(), rng), {}};
  if (Maybe(rng)) fields[1].push_back(Varint(1, Pick(rng, 0, 9)));  // overruled
  fields[1].push_back(Varint(1, spec.dtype()));
  Chunks parts;
  if (Maybe(rng)) return {Bytes(number, Interleave(fields, rng))};
  // Each chunk in a message of its own, shapes in order.
  for (const Chunks& field : fields) {
    for (const std::string& chunk : field) parts.push_back(Bytes(number, chunk));
  }
  return parts;
}

}  // namespace

absl::StatusOr<HostBlock> TestPool::Allocate(int64_t size) {
  const auto aligned = static_cast<size_t>((size + 255) / 256 * 256);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(256, aligned));
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return HostBlock(this, data, size);
}
void TestPool::Free(std::byte* data, int64_t size) {
  used_bytes_ -= size;
  std::free(data);
}

v1::AttendRequest SmallRequest() {
  Rng rng(1);
  v1::AttendRequest r;
  SetTensor(v1::DATA_TYPE_FP16, {2, 4, 3, 8}, rng, r.mutable_q(), r.mutable_q_data());
  SetTensor(v1::DATA_TYPE_FP16, {2, 2, 5, 8}, rng, r.mutable_k(), r.mutable_k_data());
  SetTensor(v1::DATA_TYPE_FP16, {2, 2, 5, 8}, rng, r.mutable_v(), r.mutable_v_data());
  return r;
}

v1::AttendRequest RandomRequest(Rng& rng) {
  v1::AttendRequest r;
  const auto dtype = static_cast<v1::DataType>(Pick(rng, 1, 3));
  Sizes s = {Pick(rng, 0, 3),    0, Pick(rng, 1, 3), Pick(rng, 0, 6), Pick(rng, 0, 6), 8 * Pick(rng, 1, 2),
             8 * Pick(rng, 1, 2)};
  s.q_heads = s.kv_heads * Pick(rng, 1, 3);
  r.set_layout(static_cast<v1::Layout>(rng() % 4));
  AddOptions(s, rng, &r);
  const bool packed = r.layout() == v1::LAYOUT_PACKED;
  if (packed) {
    s.q_len = AddLengths(s.batch, 4, rng, r.mutable_q_lengths());
    s.kv_len = AddLengths(s.batch, 4, rng, r.mutable_kv_lengths());
  } else {
    if (Maybe(rng)) AddLengths(s.batch, s.q_len, rng, r.mutable_q_lengths());
    if (Maybe(rng)) AddLengths(s.batch, s.kv_len, rng, r.mutable_kv_lengths());
    AddScoreTensors(s, dtype, rng, &r);
    if (rng() % 3 == 0 && s.q_len > 0) {
      for (int64_t i = Pick(rng, 1, 4); i > 0; --i) r.add_weight_rows(Pick(rng, 0, s.q_len - 1));
    } else if (r.kernel() != v1::KERNEL_FLASH) {
      r.set_return_weights(Maybe(rng));
    }
  }
  const auto shape = [&](int64_t heads, int64_t length, int64_t dim) {
    if (packed) return std::vector<int64_t>{length, heads, dim};
    if (r.layout() == v1::LAYOUT_BLHD) return std::vector<int64_t>{s.batch, length, heads, dim};
    return std::vector<int64_t>{s.batch, heads, length, dim};
  };
  SetTensor(dtype, shape(s.q_heads, s.q_len, s.dim), rng, r.mutable_q(), r.mutable_q_data());
  SetTensor(dtype, shape(s.kv_heads, s.kv_len, s.dim), rng, r.mutable_k(), r.mutable_k_data());
  SetTensor(dtype, shape(s.kv_heads, s.kv_len, s.v_dim), rng, r.mutable_v(), r.mutable_v_data());
  return r;
}

std::string ShuffledSerialize(const v1::AttendRequest& r, Rng& rng) {
  std::vector<Chunks> fields;
  const auto last_wins = [&](std::string overruled, std::string value) {
    fields.emplace_back();
    if (Maybe(rng)) fields.back().push_back(std::move(overruled));
    fields.back().push_back(std::move(value));
  };
  const auto tensor = [&](int spec_number, bool has, const v1::TensorSpec& spec, int data_number,
                          const std::string& data) {
    if (has) fields.push_back(SpecChunks(spec_number, spec, rng));
    if (has) last_wins(Bytes(data_number, std::string(rng() % 40, 'x')), Bytes(data_number, data));
  };
  tensor(1, r.has_q(), r.q(), 101, r.q_data());
  tensor(2, r.has_k(), r.k(), 102, r.k_data());
  tensor(3, r.has_v(), r.v(), 103, r.v_data());
  tensor(13, r.has_bias(), r.bias(), 104, r.bias_data());
  tensor(14, r.has_mask(), r.mask(), 105, r.mask_data());
  tensor(15, r.has_alibi_slopes(), r.alibi_slopes(), 106, r.alibi_slopes_data());
  tensor(16, r.has_sinks(), r.sinks(), 107, r.sinks_data());
  last_wins(Varint(4, 77), Varint(4, r.layout()));
  last_wins(Varint(5, -1), Varint(5, r.kernel()));
  last_wins(Varint(6, 5), Varint(6, r.causal()));
  if (r.has_scale()) last_wins(Float(7, NAN), Float(7, r.scale()));
  if (r.has_softcap()) last_wins(Float(8, -3), Float(8, r.softcap()));
  if (r.has_window_left()) last_wins(Varint(9, -7), Varint(9, r.window_left()));
  if (r.has_window_right()) last_wins(Varint(10, 3), Varint(10, r.window_right()));
  last_wins(Varint(17, 1), Varint(17, r.return_lse() ? 2 : 0));  // any non-zero value is true
  last_wins(Varint(18, 1), Varint(18, r.return_weights()));
  fields.push_back(ListChunks(11, r.q_lengths(), rng));
  fields.push_back(ListChunks(12, r.kv_lengths(), rng));
  fields.push_back(ListChunks(19, r.weight_rows(), rng));
  return Interleave(std::move(fields), rng);
}

grpc::ByteBuffer CutIntoSlices(absl::string_view message, Rng& rng) {
  std::vector<grpc::Slice> slices;
  const size_t longest = size_t{1} << (rng() % 12);
  while (!message.empty()) {
    const size_t size = std::min(message.size(), rng() % (longest + 1));
    // An allocation of exactly its size, so that the address sanitizer sees a read behind it.
    auto* bytes = new char[size];
    std::copy_n(message.data(), size, bytes);
    slices.emplace_back(
        bytes, size, [](void* data) { delete[] static_cast<char*>(data); }, bytes);
    message.remove_prefix(size);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer OneSlice(absl::string_view message) {
  const grpc::Slice slice(message.data(), message.size());
  return grpc::ByteBuffer(&slice, 1);
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices)
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return out;
}

RequestFields FieldsOf(const v1::AttendRequest& r, const DecodeLimits& limits) {
  RequestFields f;
  const auto tensor = [&f](TensorId id, bool has, const v1::TensorSpec& spec, const std::string& data) {
    TensorField& t = f.tensor(id);
    t.has_spec = has;
    t.dtype = spec.dtype();
    t.rank = spec.shape_size();
    for (int i = 0; i < std::min<int>(spec.shape_size(), kRankMax); ++i) {
      t.shape[static_cast<size_t>(i)] = spec.shape(i);
    }
    t.data_bytes = static_cast<int64_t>(data.size());
  };
  tensor(TensorId::kQ, r.has_q(), r.q(), r.q_data());
  tensor(TensorId::kK, r.has_k(), r.k(), r.k_data());
  tensor(TensorId::kV, r.has_v(), r.v(), r.v_data());
  tensor(TensorId::kBias, r.has_bias(), r.bias(), r.bias_data());
  tensor(TensorId::kMask, r.has_mask(), r.mask(), r.mask_data());
  tensor(TensorId::kAlibiSlopes, r.has_alibi_slopes(), r.alibi_slopes(), r.alibi_slopes_data());
  tensor(TensorId::kSinks, r.has_sinks(), r.sinks(), r.sinks_data());
  f.layout = r.layout();
  f.kernel = r.kernel();
  f.causal = r.causal();
  if (r.has_scale()) f.scale = r.scale();
  if (r.has_softcap()) f.softcap = r.softcap();
  if (r.has_window_left()) f.window_left = r.window_left();
  if (r.has_window_right()) f.window_right = r.window_right();
  for (const int64_t length : r.q_lengths()) f.q_lengths.Add(length, limits.batch_max);
  for (const int64_t length : r.kv_lengths()) f.kv_lengths.Add(length, limits.batch_max);
  for (const int64_t row : r.weight_rows()) f.weight_rows.Add(row, limits.weight_rows_max);
  f.return_lse = r.return_lse();
  f.return_weights = r.return_weights();
  return f;
}

bool HasUnknownFields(const v1::AttendRequest& r) {
  const auto unknown = [](const google::protobuf::Message& m) {
    return !m.GetReflection()->GetUnknownFields(m).empty();
  };
  return unknown(r) || unknown(r.q()) || unknown(r.k()) || unknown(r.v()) || unknown(r.bias()) ||
         unknown(r.mask()) || unknown(r.alibi_slopes()) || unknown(r.sinks());
}

std::string Describe(const Call& c) {
  const auto shape = [](const std::optional<BroadcastShape>& s) {
    return s ? absl::StrCat("[", s->batch, ",", s->heads, ",", s->rows, ",", s->keys, "]") : "none";
  };
  return absl::StrCat(
      "kernel ", Name(c.kernel), " dtype ", Name(c.dtype), " layout ", static_cast<int>(c.layout), " batch ",
      c.batch, " heads ", c.q_heads, "/", c.kv_heads, " dims ", c.head_dim, "/", c.v_head_dim, " lengths ",
      c.q_len, "/", c.kv_len, " q_lengths ", absl::StrJoin(c.q_lengths, ","), " kv_lengths ",
      absl::StrJoin(c.kv_lengths, ","), " scale ", c.scale ? absl::StrCat(*c.scale) : "unset", " softcap ",
      c.softcap, " causal ", static_cast<int>(c.causal), " window ", c.window_left, "/", c.window_right,
      " bias ", shape(c.bias), c.bias_is_fp32 ? " fp32" : "", " mask ", shape(c.mask), " alibi ",
      c.alibi_slopes, c.alibi_per_batch, " sinks ", c.sinks, " lse ", c.return_lse, " weights ",
      c.return_weights, " rows ", absl::StrJoin(c.weight_rows, ","));
}

std::string Describe(const RequestFields& f) {
  std::string out;
  for (size_t i = 0; i < kTensorCount; ++i) {
    const TensorField& t = f.tensors[i];
    absl::StrAppend(&out, SpecName(static_cast<TensorId>(i)), " ", t.has_spec, " dtype ", t.dtype, " rank ",
                    t.rank, " shape ", absl::StrJoin(t.shape, ","), " bytes ", t.data_bytes, "; ");
  }
  const auto list = [](const BoundedList& l) {
    return absl::StrCat(l.count, ":", absl::StrJoin(l.values, ","));
  };
  const auto value = [](const auto& v) { return v ? absl::StrCat(*v) : "unset"; };
  absl::StrAppend(&out, "layout ", f.layout, " kernel ", f.kernel, " causal ", f.causal, " scale ",
                  value(f.scale), " softcap ", value(f.softcap), " window ", value(f.window_left), "/",
                  value(f.window_right));
  absl::StrAppend(&out, " q_lengths ", list(f.q_lengths), " kv_lengths ", list(f.kv_lengths), " rows ",
                  list(f.weight_rows), " lse ", f.return_lse, " weights ", f.return_weights);
  return out;
}

}  // namespace attend::server
