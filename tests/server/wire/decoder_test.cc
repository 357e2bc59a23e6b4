// What a well-formed request means, in every form that it can take on the wire.
#include "server/wire/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "grpcpp/support/slice.h"
#include "server/wire/slice_stream.h"
#include "server/wire/validate.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

struct Decoded {
  std::string call;
  std::map<std::string, std::string> tensors;  // bytes by name
};

std::string Take(const void* data, int64_t bytes) {
  return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
}

Decoded Decode(grpc::ByteBuffer message, int64_t piece_bytes = std::numeric_limits<int64_t>::max()) {
  Decoded result;
  AttendDecoder decoder(&message, {});
  EXPECT_FALSE(message.Valid());
  const absl::Status status = decoder.ReadSpecs();
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return result;
  const Call& call = decoder.call();
  result.call = Describe(call);
  TestPool pool;
  const HostBlock block = *pool.Allocate(decoder.input_bytes());
  std::memset(block.data(), 0xee, static_cast<size_t>(block.size()));
  CallTensors t;
  absl::StatusOr<std::vector<TensorPiece>> pieces = decoder.CutTensors(block, &t, piece_bytes);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  if (!pieces.ok()) return result;
  // In any order: threads take them as they come. With its last piece a tensor is told, and is whole.
  std::multiset<std::string> told;
  for (auto piece = pieces->rbegin(); piece != pieces->rend(); ++piece) {
    const std::span<const std::byte> whole = piece->Copy();
    if (!whole.empty()) told.insert(Take(whole.data(), static_cast<int64_t>(whole.size())));
  }
  EXPECT_TRUE(decoder.CheckTensors(t).ok());
  result.tensors = {
      {"q", Take(t.q, call.q_bytes())}, {"k", Take(t.k, call.k_bytes())}, {"v", Take(t.v, call.v_bytes())}};
  if (t.bias != nullptr) result.tensors["bias"] = Take(t.bias, call.bias_bytes());
  if (t.mask != nullptr) result.tensors["mask"] = Take(t.mask, call.mask_bytes());
  if (t.alibi_slopes != nullptr) result.tensors["alibi_slopes"] = Take(t.alibi_slopes, call.alibi_bytes());
  if (t.sinks != nullptr) result.tensors["sinks"] = Take(t.sinks, call.sinks_bytes());
  std::multiset<std::string> tensors;
  for (const auto& [name, bytes] : result.tensors) {
    if (!bytes.empty()) tensors.insert(bytes);
  }
  EXPECT_EQ(told, tensors);
  if (t.weight_rows != nullptr) result.tensors["weight_rows"] = Take(t.weight_rows, call.weight_rows_bytes());
  return result;
}

std::map<std::string, std::string> TensorsOf(const v1::AttendRequest& r) {
  std::map<std::string, std::string> tensors = {{"q", r.q_data()}, {"k", r.k_data()}, {"v", r.v_data()}};
  if (r.has_bias()) tensors["bias"] = r.bias_data();
  if (r.has_mask()) tensors["mask"] = r.mask_data();
  if (r.has_alibi_slopes()) tensors["alibi_slopes"] = r.alibi_slopes_data();
  if (r.has_sinks()) tensors["sinks"] = r.sinks_data();
  if (r.weight_rows_size() > 0)
    tensors["weight_rows"] = Take(r.weight_rows().data(), 8 * r.weight_rows_size());
  return tensors;
}

std::string CallOf(const v1::AttendRequest& r) {
  Call call;
  ViolationList violations;
  ValidateRequest(FieldsOf(r, {}), {}, &call, &violations);
  EXPECT_TRUE(violations.empty()) << violations.Take() << r.ShortDebugString();
  return Describe(call);
}

TEST(Decoder, ReadsWhatTheProtoSays) {
  v1::AttendRequest r = SmallRequest();
  r.set_layout(v1::LAYOUT_BLHD);
  *r.mutable_q()->mutable_shape() = v1::AttendRequest(r).q().shape();
  r.mutable_q()->set_shape(1, 3);  // [B, Lq, Hq, D]
  r.mutable_q()->set_shape(2, 4);
  r.mutable_k()->set_shape(1, 5);
  r.mutable_k()->set_shape(2, 2);
  r.mutable_v()->set_shape(1, 5);
  r.mutable_v()->set_shape(2, 2);
  r.set_causal(v1::CAUSAL_MODE_TOP_LEFT);
  r.set_scale(0.5f);
  r.set_window_left(7);
  grpc::ByteBuffer message = OneSlice(r.SerializeAsString());
  AttendDecoder decoder(&message, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  const Call& call = decoder.call();
  EXPECT_EQ(call.layout, Layout::kBlhd);
  EXPECT_EQ(call.dtype, DataType::kFp16);
  EXPECT_EQ(call.kernel, Kernel::kAuto);
  EXPECT_EQ(call.causal, Causal::kTopLeft);
  EXPECT_EQ(call.batch, 2);
  EXPECT_EQ(call.q_heads, 4);
  EXPECT_EQ(call.kv_heads, 2);
  EXPECT_EQ(call.q_len, 3);
  EXPECT_EQ(call.kv_len, 5);
  EXPECT_EQ(call.head_dim, 8);
  EXPECT_EQ(call.v_head_dim, 8);
  EXPECT_EQ(call.scale, 0.5f);
  EXPECT_EQ(call.window_left, 7);
  EXPECT_EQ(call.window_right, kUnbounded);
  EXPECT_EQ(decoder.input_bytes(), 512 + 512 + 512) << "384, 320 and 320 bytes, each aligned to 256";
}

TEST(Decoder, EveryFormOfARequestMeansTheSame) {
  constexpr uint64_t kSeed = 20240517;
  Rng rng(kSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " request ", i));
    const v1::AttendRequest request = RandomRequest(rng);
    const std::string call = CallOf(request);
    const auto tensors = TensorsOf(request);
    const Decoded plain = Decode(CutIntoSlices(request.SerializeAsString(), rng));
    EXPECT_EQ(plain.call, call);
    EXPECT_EQ(plain.tensors, tensors);
    for (int form = 0; form < 3; ++form) {
      const std::string shuffled = ShuffledSerialize(request, rng);
      v1::AttendRequest parsed;
      ASSERT_TRUE(parsed.ParseFromString(shuffled));
      ASSERT_EQ(Describe(FieldsOf(parsed, {})), Describe(FieldsOf(request, {}))) << "the test's serialiser";
      const Decoded decoded = Decode(CutIntoSlices(shuffled, rng), 1 + static_cast<int64_t>(rng() % 300));
      EXPECT_EQ(decoded.call, call);
      EXPECT_EQ(decoded.tensors, tensors);
    }
    if (HasFailure()) break;
  }
}

TEST(Decoder, ReadsTheLastOfATensorSentTwice) {
  const v1::AttendRequest request = SmallRequest();
  v1::AttendRequest before;
  before.set_k_data(std::string(1000, 'x'));
  const Decoded decoded = Decode(OneSlice(before.SerializeAsString() + request.SerializeAsString()));
  EXPECT_EQ(decoded.tensors.at("k"), request.k_data());
}

TEST(Decoder, ReleasesSlicesWhileItCopies) {
  // Slices that count themselves: when a tensor has been copied, only what was not read yet is alive.
  static int alive;
  alive = 0;
  v1::AttendRequest request = SmallRequest();
  const std::string message = request.SerializeAsString();
  std::vector<grpc::Slice> slices;
  constexpr size_t kSliceBytes = 32;
  for (size_t at = 0; at < message.size(); at += kSliceBytes) {
    const size_t size = std::min(kSliceBytes, message.size() - at);
    ++alive;
    slices.emplace_back(
        const_cast<char*>(message.data() + at), size, [](void*) { --alive; }, &alive);
  }
  const int all = alive;
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  slices.clear();
  AttendDecoder decoder(&buffer, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  EXPECT_EQ(alive, all) << "nothing is read before there is memory for it";
  TestPool pool;
  const HostBlock block = *pool.Allocate(decoder.input_bytes());
  CallTensors tensors;
  absl::StatusOr<std::vector<TensorPiece>> pieces = decoder.CutTensors(block, &tensors, 1 << 20);
  ASSERT_TRUE(pieces.ok());
  EXPECT_LT(alive, all) << "what lies before the tensors is gone";
  std::vector<int> alive_after;
  for (TensorPiece& piece : *pieces) {
    piece.Copy();
    alive_after.push_back(alive);
  }
  ASSERT_EQ(alive_after.size(), 3u);  // q of 384 bytes, then k and v of 320 each
  EXPECT_LE(alive_after[0], all - 384 / 32);
  EXPECT_LE(alive_after[1], all - (384 + 320) / 32);
  EXPECT_LE(alive_after[2], 1);
  EXPECT_EQ(alive, 0);
}

TEST(Decoder, AsksForABlockEvenForNoBytes) {
  v1::AttendRequest r = SmallRequest();
  for (v1::TensorSpec* spec : {r.mutable_q(), r.mutable_k(), r.mutable_v()}) spec->set_shape(0, 0);
  r.clear_q_data();
  r.clear_k_data();
  r.clear_v_data();
  grpc::ByteBuffer message = OneSlice(r.SerializeAsString());
  AttendDecoder decoder(&message, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  EXPECT_EQ(decoder.input_bytes(), 256);
  EXPECT_EQ(OutputBytes(decoder.call()), 256);
}

TEST(Decoder, RefusesABlockThatIsTooSmall) {
  grpc::ByteBuffer message = OneSlice(SmallRequest().SerializeAsString());
  AttendDecoder decoder(&message, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  TestPool pool;
  const HostBlock block = *pool.Allocate(decoder.input_bytes() - 1);
  CallTensors tensors;
  EXPECT_EQ(decoder.ReadTensors(block, &tensors).code(), absl::StatusCode::kInternal);
}

TEST(Decoder, PlacesOutputsApart) {
  Call call;
  call.dtype = DataType::kBf16;
  call.batch = 1;
  call.q_heads = call.kv_heads = 1;
  call.head_dim = call.v_head_dim = 8;
  call.q_len = 3;
  call.kv_len = 5;
  call.return_lse = true;
  call.weight_rows = {2, 0};
  EXPECT_EQ(OutputBytes(call), 3 * 256);
  TestPool pool;
  const HostBlock block = *pool.Allocate(OutputBytes(call));
  CallTensors tensors;
  PlaceOutputs(call, block.data(), &tensors);
  EXPECT_EQ(tensors.out, block.data());
  EXPECT_EQ(static_cast<void*>(tensors.lse), block.data() + 256);
  EXPECT_EQ(static_cast<void*>(tensors.weights), block.data() + 512);
  call.return_lse = false;
  call.weight_rows.clear();
  CallTensors none;
  PlaceOutputs(call, block.data(), &none);
  EXPECT_EQ(none.lse, nullptr);
  EXPECT_EQ(none.weights, nullptr);
}

TEST(SliceStream, GivesEveryByteOnceAndBacksUp) {
  std::vector<grpc::Slice> slices;
  for (const char* text : {"", "ab", "", "cde", "f", ""}) slices.emplace_back(text);
  SliceStream stream(slices);
  EXPECT_EQ(stream.size(), 6);
  ASSERT_TRUE(stream.Skip(1));
  const void* data;
  int size;
  std::string seen;
  bool backed_up = false;
  while (stream.Next(&data, &size)) {
    if (size > 1 && !backed_up) {
      stream.BackUp(1);
      --size;
      backed_up = true;
    }
    seen.append(static_cast<const char*>(data), static_cast<size_t>(size));
  }
  EXPECT_EQ(seen, "bcdef");
  EXPECT_EQ(stream.ByteCount(), 6);
  EXPECT_FALSE(stream.Skip(1));
  stream.Rewind(true);
  EXPECT_TRUE(stream.Skip(6));
}

}  // namespace
}  // namespace attend::server
