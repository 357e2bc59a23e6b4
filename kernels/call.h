// A call: tensors of a whole request (a batch of sequences, dense or packed) and its options, by shape
// alone, and the problems that it stands for.
#ifndef ATTEND_KERNELS_CALL_H_
#define ATTEND_KERNELS_CALL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/attention.h"

namespace attend {

// How q, k, v and out of a call are laid out, contiguous and row-major.
enum class Layout : uint8_t {
  kBhld,    // [batch, heads, length, head_dim]
  kBlhd,    // [batch, length, heads, head_dim]
  kPacked,  // [total, heads, head_dim], sequences end to end
};

// Sizes of a tensor that is broadcast to [batch, q_heads, q_len, kv_len]: each 1 or the full size.
struct BroadcastShape {
  int64_t batch = 1, heads = 1, rows = 1, keys = 1;
  int64_t elements() const { return batch * heads * rows * keys; }
};

// Shapes and options of a call. A valid one (the wire's validator makes no other) has products that
// fit int64 and lengths within the padded ones.
struct Call {
  Kernel kernel = Kernel::kAuto;
  DataType dtype = DataType::kFp32;
  Layout layout = Layout::kBhld;
  int64_t batch = 0;
  int32_t q_heads = 0, kv_heads = 0;
  int32_t head_dim = 0, v_head_dim = 0;
  // Dense: the padded lengths, Lq and Lk. Packed: the totals.
  int64_t q_len = 0, kv_len = 0;
  // [batch], or empty (dense only): all are q_len or kv_len.
  std::vector<int64_t> q_lengths, kv_lengths;

  std::optional<float> scale;  // unset: 1/sqrt(head_dim)
  float softcap = 0.0f;
  Causal causal = Causal::kNone;
  int64_t window_left = kUnbounded, window_right = kUnbounded;

  std::optional<BroadcastShape> bias;
  bool bias_is_fp32 = false;
  std::optional<BroadcastShape> mask;
  bool alibi_slopes = false;
  bool alibi_per_batch = false;  // slopes are [batch, q_heads]
  bool sinks = false;

  bool return_lse = false;
  bool return_weights = false;       // of all rows
  std::vector<int64_t> weight_rows;  // of these rows; empty: none

  // Bytes of each tensor; 0 where absent.
  int64_t q_bytes() const;
  int64_t k_bytes() const;
  int64_t v_bytes() const;
  int64_t bias_bytes() const;
  int64_t mask_bytes() const;
  int64_t alibi_bytes() const;
  int64_t sinks_bytes() const;
  int64_t out_bytes() const;
  int64_t lse_bytes() const;
  int64_t weights_bytes() const;
  int64_t weight_rows_bytes() const;  // int64 each
};

// Where a call's tensors lie, in one device's memory; null where absent. Contiguous.
struct CallTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* bias = nullptr;
  const uint8_t* mask = nullptr;
  const float* alibi_slopes = nullptr;
  const float* sinks = nullptr;
  const int64_t* weight_rows = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  float* weights = nullptr;
};

// The problems of a call, one per sequence, in order. Total work is O(batch).
std::vector<Problem> MakeProblems(const Call& call, const CallTensors& tensors);

// A launch of these problems with the call's dtype, head_dims and kernel (kAuto resolved).
Launch MakeLaunch(const Call& call, std::span<const Problem> problems);

}  // namespace attend

#endif  // ATTEND_KERNELS_CALL_H_
