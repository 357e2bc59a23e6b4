#include "tests/bench/service/requests.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "attend/v1/attention.pb.h"
#include "tests/bench/service/figures.h"

namespace attend::bench {
namespace {

std::string RandomHalves(int64_t count, uint32_t seed) {
  std::string bytes(static_cast<size_t>(count) * 2, '\0');
  FillHalves(std::as_writable_bytes(std::span(bytes)), seed);
  return bytes;
}

int64_t Elements(const AttentionShape& s) { return s.batch * s.heads * s.length * s.head_dim; }

void SetSpec(v1::TensorSpec* spec, std::initializer_list<int64_t> shape) {
  spec->set_dtype(v1::DATA_TYPE_FP16);
  for (const int64_t size : shape) spec->add_shape(size);
}

}  // namespace

std::string AttendMessage(const AttentionShape& s) {
  v1::AttendRequest request;
  request.set_causal(v1::CAUSAL_MODE_BOTTOM_RIGHT);
  for (v1::TensorSpec* spec : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    SetSpec(spec, {s.batch, s.heads, s.length, s.head_dim});
  }
  request.set_q_data(RandomHalves(Elements(s), 1));
  request.set_k_data(RandomHalves(Elements(s), 2));
  request.set_v_data(RandomHalves(Elements(s), 3));
  return request.SerializeAsString();
}

std::string TodayMessage(const AttentionShape& s) {
  const int32_t shape[] = {static_cast<int32_t>(s.batch), static_cast<int32_t>(s.heads),
                           static_cast<int32_t>(s.length), static_cast<int32_t>(s.head_dim)};
  std::string message(reinterpret_cast<const char*>(shape), sizeof(shape));
  for (const uint32_t seed : {1u, 2u, 3u}) message += RandomHalves(Elements(s), seed);
  return message;
}

std::string TransportMessage(int64_t bytes) {
  constexpr int64_t kDim = 64;
  const int64_t kv_len = bytes < 4096 ? 1 : 8;
  const int64_t q_len = std::max<int64_t>(1, bytes / (kDim * 2) - 2 * kv_len);
  v1::AttendRequest request;
  const auto fill = [](v1::TensorSpec* spec, std::string* data, int64_t length) {
    SetSpec(spec, {1, 1, length, kDim});
    data->assign(static_cast<size_t>(length * kDim * 2), '\0');
  };
  fill(request.mutable_q(), request.mutable_q_data(), q_len);
  fill(request.mutable_k(), request.mutable_k_data(), kv_len);
  fill(request.mutable_v(), request.mutable_v_data(), kv_len);
  return request.SerializeAsString();
}

}  // namespace attend::bench
