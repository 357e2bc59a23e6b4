// Calls with random tensors in one block of inputs and one of outputs, as the wire lays those of large
// requests.
#ifndef ATTEND_TESTS_SERVER_DEVICE_CALL_FIXTURE_H_
#define ATTEND_TESTS_SERVER_DEVICE_CALL_FIXTURE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>

#include "gtest/gtest.h"
#include "kernels/call.h"
#include "server/device/device.h"
#include "tests/kernels/host_float.h"
#include "tests/kernels/host_launch.h"
#include "tests/kernels/reference.h"

namespace attend::test {

class TestCall {
 public:
  explicit TestCall(Call call, uint32_t seed = 1) : call_(std::move(call)) {
    std::mt19937 random(seed);
    inputs_ = Block(Place(true));
    outputs_ = Block(Place(false));
    inputs_bytes_ = Place(true);
    Place(false);
    Fill(random, tensors_.q, call_.q_bytes());
    Fill(random, tensors_.k, call_.k_bytes());
    Fill(random, tensors_.v, call_.v_bytes());
  }

  server::BatchItem item() const { return {&call_, &tensors_}; }
  const Call& call() const { return call_; }
  const CallTensors& tensors() const { return tensors_; }
  // Bytes of all inputs, and of one.
  std::span<std::byte> inputs() { return {inputs_.get(), static_cast<size_t>(inputs_bytes_)}; }
  std::span<std::byte> q() { return Of(tensors_.q, call_.q_bytes()); }
  std::span<std::byte> k() { return Of(tensors_.k, call_.k_bytes()); }
  std::span<std::byte> v() { return Of(tensors_.v, call_.v_bytes()); }
  const std::byte* outputs() const { return outputs_.get(); }

  // Fails unless out (and lse) is what the float64 reference gives.
  void ExpectRight() const {
    const std::vector<Problem> problems = MakeProblems(call_, tensors_);
    const Launch launch = MakeLaunch(call_, problems);
    for (const Problem& p : problems) {
      const Expected expected = Reference(launch, p);
      const int64_t dv = call_.v_head_dim;
      for (int64_t row = 0; row < p.q_len_padded; ++row) {
        for (int64_t head = 0; head < p.q_heads; ++head) {
          for (int64_t d = 0; d < dv; ++d) {
            const float got =
                Load(p.out, call_.dtype, row * p.out_strides.token + head * p.out_strides.head + d);
            ASSERT_NEAR(got, expected.out[(row * p.q_heads + head) * dv + d], 2e-3)
                << "row " << row << " head " << head << " dim " << d;
          }
        }
      }
    }
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  static Memory Block(int64_t bytes) {
    return Memory(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256)));
  }

  std::span<std::byte> Of(const void* tensor, int64_t bytes) {
    return inputs().subspan(static_cast<const std::byte*>(tensor) - inputs_.get(), bytes);
  }

  // Points the inputs (outputs) into their block; returns its size.
  int64_t Place(bool in) {
    std::byte* base = in ? inputs_.get() : outputs_.get();
    int64_t end = 0;
    const auto place = [&](auto*& pointer, int64_t bytes) {
      if (bytes == 0) return;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + end);
      end += (bytes + 255) / 256 * 256;
    };
    if (in) {
      place(tensors_.q, call_.q_bytes());
      place(tensors_.k, call_.k_bytes());
      place(tensors_.v, call_.v_bytes());
    } else {
      place(tensors_.out, call_.out_bytes());
      place(tensors_.lse, call_.lse_bytes());
    }
    return end;
  }

  void Fill(std::mt19937& random, const void* data, int64_t bytes) {
    std::normal_distribution<float> normal;
    const int64_t elements = bytes / SizeOf(call_.dtype);
    for (int64_t i = 0; i < elements; ++i) Store(const_cast<void*>(data), call_.dtype, i, normal(random));
  }

  Call call_;
  CallTensors tensors_;
  Memory inputs_{nullptr}, outputs_{nullptr};
  int64_t inputs_bytes_ = 0;
};

inline Call SmallCall(int64_t batch, int64_t length, int32_t heads = 2) {
  Call call;
  call.batch = batch;
  call.q_heads = call.kv_heads = heads;
  call.head_dim = call.v_head_dim = 16;
  call.q_len = call.kv_len = length;
  call.causal = Causal::kBottomRight;
  call.return_lse = true;
  return call;
}

}  // namespace attend::test

#endif  // ATTEND_TESTS_SERVER_DEVICE_CALL_FIXTURE_H_
