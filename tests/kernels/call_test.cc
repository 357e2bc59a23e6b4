// A call's problems point where its layout says: each element is found through the problem's strides and by
// hand from the definition of the layout.
#include "kernels/call.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace attend {
namespace {

constexpr int64_t kBatch = 3, kQLen = 5, kKvLen = 7;
constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 16, kVDim = 8;

// Addresses only; nothing is read.
template <typename T>
T* Base(uintptr_t at) {
  return reinterpret_cast<T*>(at);
}

CallTensors Tensors() {
  CallTensors t;
  t.q = Base<void>(0x10000000);
  t.k = Base<void>(0x20000000);
  t.v = Base<void>(0x30000000);
  t.out = Base<void>(0x40000000);
  t.lse = Base<float>(0x50000000);
  t.bias = Base<void>(0x60000000);
  t.mask = Base<uint8_t>(0x70000000);
  t.alibi_slopes = Base<float>(0x80000000);
  t.sinks = Base<float>(0x90000000);
  t.weights = Base<float>(0xa0000000);
  t.weight_rows = Base<int64_t>(0xb0000000);
  return t;
}

Call Dense(Layout layout) {
  Call c;
  c.layout = layout;
  c.dtype = DataType::kFp16;
  c.batch = kBatch;
  c.q_heads = kHeads;
  c.kv_heads = kKvHeads;
  c.head_dim = kDim;
  c.v_head_dim = kVDim;
  c.q_len = kQLen;
  c.kv_len = kKvLen;
  c.return_lse = true;
  return c;
}

// Elements from base to (token, head) of a problem's tensor.
int64_t At(const void* pointer, const void* base, const Strides& s, int64_t token, int64_t head,
           int64_t size) {
  return (static_cast<const char*>(pointer) - static_cast<const char*>(base)) / size + token * s.token +
         head * s.head;
}

TEST(CallTest, HeadsFirst) {
  const Call call = Dense(Layout::kBhld);
  const CallTensors t = Tensors();
  const std::vector<Problem> problems = MakeProblems(call, t);
  ASSERT_EQ(problems.size(), 3u);
  for (int64_t b = 0; b < kBatch; ++b) {
    const Problem& p = problems[b];
    EXPECT_EQ(At(p.q, t.q, p.q_strides, 4, 3, 2), ((b * kHeads + 3) * kQLen + 4) * kDim);
    EXPECT_EQ(At(p.k, t.k, p.k_strides, 6, 1, 2), ((b * kKvHeads + 1) * kKvLen + 6) * kDim);
    EXPECT_EQ(At(p.v, t.v, p.v_strides, 6, 1, 2), ((b * kKvHeads + 1) * kKvLen + 6) * kVDim);
    EXPECT_EQ(At(p.out, t.out, p.out_strides, 4, 3, 2), ((b * kHeads + 3) * kQLen + 4) * kVDim);
    EXPECT_EQ(p.lse - t.lse + 3 * p.lse_head_stride + 4, (b * kHeads + 3) * kQLen + 4);
  }
}

TEST(CallTest, TokensFirst) {
  const Call call = Dense(Layout::kBlhd);
  const CallTensors t = Tensors();
  const std::vector<Problem> problems = MakeProblems(call, t);
  for (int64_t b = 0; b < kBatch; ++b) {
    const Problem& p = problems[b];
    EXPECT_EQ(At(p.q, t.q, p.q_strides, 4, 3, 2), ((b * kQLen + 4) * kHeads + 3) * kDim);
    EXPECT_EQ(At(p.k, t.k, p.k_strides, 6, 1, 2), ((b * kKvLen + 6) * kKvHeads + 1) * kDim);
    EXPECT_EQ(At(p.v, t.v, p.v_strides, 6, 1, 2), ((b * kKvLen + 6) * kKvHeads + 1) * kVDim);
    EXPECT_EQ(At(p.out, t.out, p.out_strides, 4, 3, 2), ((b * kQLen + 4) * kHeads + 3) * kVDim);
  }
}

TEST(CallTest, Packed) {
  Call call = Dense(Layout::kPacked);
  call.q_lengths = {2, 0, 3};
  call.kv_lengths = {1, 4, 2};
  const CallTensors t = Tensors();
  const std::vector<Problem> problems = MakeProblems(call, t);
  const int64_t q_starts[] = {0, 2, 2}, kv_starts[] = {0, 1, 5};
  for (int64_t b = 0; b < kBatch; ++b) {
    const Problem& p = problems[b];
    EXPECT_EQ(p.q_len, call.q_lengths[b]);
    EXPECT_EQ(p.q_len_padded, call.q_lengths[b]);
    EXPECT_EQ(p.kv_len, call.kv_lengths[b]);
    EXPECT_EQ(At(p.q, t.q, p.q_strides, 1, 3, 2), ((q_starts[b] + 1) * kHeads + 3) * kDim);
    EXPECT_EQ(At(p.v, t.v, p.v_strides, 1, 1, 2), ((kv_starts[b] + 1) * kKvHeads + 1) * kVDim);
    EXPECT_EQ(At(p.out, t.out, p.out_strides, 1, 3, 2), ((q_starts[b] + 1) * kHeads + 3) * kVDim);
    // lse is [heads, total].
    EXPECT_EQ(p.lse - t.lse + 3 * p.lse_head_stride + 1, 3 * kQLen + q_starts[b] + 1);
  }
}

TEST(CallTest, RaggedDenseKeepsItsPadding) {
  Call call = Dense(Layout::kBhld);
  call.q_lengths = {1, 5, 0};
  call.kv_lengths = {7, 3, 2};
  const std::vector<Problem> problems = MakeProblems(call, Tensors());
  EXPECT_EQ(problems[0].q_len, 1);
  EXPECT_EQ(problems[0].q_len_padded, kQLen);
  EXPECT_EQ(problems[2].kv_len, 2);
  EXPECT_EQ(problems[2].kv_len_padded, kKvLen);
}

TEST(CallTest, BroadcastsByStridesOfZero) {
  for (const int64_t batch : {int64_t{1}, kBatch}) {
    for (const int64_t heads : {1, kHeads}) {
      for (const int64_t rows : {int64_t{1}, kQLen}) {
        for (const int64_t keys : {int64_t{1}, kKvLen}) {
          Call call = Dense(Layout::kBhld);
          call.bias = BroadcastShape{batch, heads, rows, keys};
          call.mask = call.bias;
          const CallTensors t = Tensors();
          const std::vector<Problem> problems = MakeProblems(call, t);
          for (int64_t b = 0; b < kBatch; ++b) {
            const auto index = [](int64_t i, int64_t n) { return n == 1 ? 0 : i; };
            const int64_t want =
                ((index(b, batch) * heads + index(2, heads)) * rows + index(3, rows)) * keys + index(5, keys);
            const Problem& p = problems[b];
            const auto at = [](const ScoreStrides& s) { return 2 * s.head + 3 * s.row + 5 * s.key; };
            const int64_t bias = static_cast<const char*>(p.bias) - static_cast<const char*>(t.bias);
            EXPECT_EQ(bias / 2 + at(p.bias_strides), want);
            EXPECT_EQ(p.mask - t.mask + at(p.mask_strides), want);
          }
        }
      }
    }
  }
}

TEST(CallTest, BiasInFp32HasItsOwnSize) {
  Call call = Dense(Layout::kBhld);
  call.bias = BroadcastShape{kBatch, 1, 1, kKvLen};
  call.bias_is_fp32 = true;
  const CallTensors t = Tensors();
  const std::vector<Problem> problems = MakeProblems(call, t);
  EXPECT_TRUE(problems[2].bias_is_fp32);
  EXPECT_EQ(static_cast<const char*>(problems[2].bias) - static_cast<const char*>(t.bias), 2 * kKvLen * 4);
  EXPECT_EQ(call.bias_bytes(), kBatch * kKvLen * 4);
}

TEST(CallTest, SlopesPerHeadOrPerSequence) {
  Call call = Dense(Layout::kBhld);
  const CallTensors t = Tensors();
  EXPECT_EQ(MakeProblems(call, t)[1].alibi_slopes, nullptr);
  call.alibi_slopes = true;
  EXPECT_EQ(MakeProblems(call, t)[2].alibi_slopes, t.alibi_slopes);
  EXPECT_EQ(call.alibi_bytes(), kHeads * 4);
  call.alibi_per_batch = true;
  EXPECT_EQ(MakeProblems(call, t)[2].alibi_slopes, t.alibi_slopes + 2 * kHeads);
  EXPECT_EQ(call.alibi_bytes(), kBatch * kHeads * 4);
}

TEST(CallTest, WeightsOfAllOrOfChosenRows) {
  Call call = Dense(Layout::kBhld);
  const CallTensors t = Tensors();
  EXPECT_EQ(MakeProblems(call, t)[0].weights, nullptr);
  call.return_weights = true;
  Problem p = MakeProblems(call, t)[1];
  EXPECT_EQ(p.weights - t.weights + 3 * p.weights_head_stride + 4 * p.weights_row_stride + 6,
            ((kHeads + 3) * kQLen + 4) * kKvLen + 6);
  EXPECT_EQ(p.weight_rows, nullptr);
  EXPECT_EQ(call.weights_bytes(), kBatch * kHeads * kQLen * kKvLen * 4);
  EXPECT_EQ(MakeLaunch(call, {}).kernel, Kernel::kNaive);
  call.return_weights = false;
  call.weight_rows = {4, 0};
  p = MakeProblems(call, t)[1];
  EXPECT_EQ(p.weights - t.weights + 3 * p.weights_head_stride + p.weights_row_stride + 6,
            ((kHeads + 3) * 2 + 1) * kKvLen + 6);
  EXPECT_EQ(p.weight_rows, t.weight_rows);
  EXPECT_EQ(p.weight_row_count, 2);
  EXPECT_EQ(MakeLaunch(call, {}).kernel, Kernel::kFlash);
}

TEST(CallTest, OptionsReachTheProblems) {
  Call call = Dense(Layout::kBhld);
  EXPECT_FLOAT_EQ(MakeProblems(call, Tensors())[0].scale, 0.25f);  // 1/sqrt(16)
  call.scale = 0.0f;
  call.softcap = 3.0f;
  call.causal = Causal::kTopLeft;
  call.window_left = 9;
  call.sinks = true;
  call.return_lse = false;
  const Problem p = MakeProblems(call, Tensors())[2];
  EXPECT_EQ(p.scale, 0.0f);
  EXPECT_EQ(p.softcap, 3.0f);
  EXPECT_EQ(p.causal, Causal::kTopLeft);
  EXPECT_EQ(p.window_left, 9);
  EXPECT_EQ(p.window_right, kUnbounded);
  EXPECT_EQ(p.sinks, Tensors().sinks);
  EXPECT_EQ(p.lse, nullptr);
}

TEST(CallTest, Bytes) {
  const Call call = Dense(Layout::kBlhd);
  EXPECT_EQ(call.q_bytes(), kBatch * kQLen * kHeads * kDim * 2);
  EXPECT_EQ(call.k_bytes(), kBatch * kKvLen * kKvHeads * kDim * 2);
  EXPECT_EQ(call.v_bytes(), kBatch * kKvLen * kKvHeads * kVDim * 2);
  EXPECT_EQ(call.out_bytes(), kBatch * kQLen * kHeads * kVDim * 2);
  EXPECT_EQ(call.lse_bytes(), kBatch * kQLen * kHeads * 4);
  EXPECT_EQ(call.bias_bytes() + call.mask_bytes() + call.sinks_bytes() + call.weights_bytes(), 0);
}

}  // namespace
}  // namespace attend
