#include "kernels/call.h"

#include <cmath>

namespace attend {
namespace {

bool Packed(const Call& c) { return c.layout == Layout::kPacked; }

// Rows of q (keys of k) in the whole tensor.
int64_t QRows(const Call& c) { return Packed(c) ? c.q_len : c.batch * c.q_len; }
int64_t KvRows(const Call& c) { return Packed(c) ? c.kv_len : c.batch * c.kv_len; }

struct Placement {
  Strides strides;
  int64_t sequence;  // elements from one sequence of a dense batch to the next
};

Placement Place(Layout layout, int64_t len, int64_t heads, int64_t dim) {
  if (layout == Layout::kBhld) return {{dim, len * dim}, heads * len * dim};
  return {{heads * dim, dim}, len * heads * dim};
}

ScoreStrides Broadcast(const BroadcastShape& s) {
  return {s.heads == 1 ? 0 : s.rows * s.keys, s.rows == 1 ? 0 : s.keys, s.keys == 1 ? 0 : 1};
}

int64_t BroadcastOffset(const BroadcastShape& s, int64_t b) {
  return s.batch == 1 ? 0 : b * s.heads * s.rows * s.keys;
}

template <typename T>
T* Offset(T* base, int64_t elements) {
  return base == nullptr ? nullptr : base + elements;
}
const void* OffsetBytes(const void* base, int64_t bytes) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + bytes;
}
void* OffsetBytes(void* base, int64_t bytes) {
  return base == nullptr ? nullptr : static_cast<char*>(base) + bytes;
}

}  // namespace

int64_t Call::q_bytes() const { return QRows(*this) * q_heads * head_dim * SizeOf(dtype); }
int64_t Call::k_bytes() const { return KvRows(*this) * kv_heads * head_dim * SizeOf(dtype); }
int64_t Call::v_bytes() const { return KvRows(*this) * kv_heads * v_head_dim * SizeOf(dtype); }
int64_t Call::bias_bytes() const { return bias ? bias->elements() * (bias_is_fp32 ? 4 : SizeOf(dtype)) : 0; }
int64_t Call::mask_bytes() const { return mask ? mask->elements() : 0; }
int64_t Call::alibi_bytes() const { return alibi_slopes ? 4 * q_heads * (alibi_per_batch ? batch : 1) : 0; }
int64_t Call::sinks_bytes() const { return sinks ? 4 * static_cast<int64_t>(q_heads) : 0; }
int64_t Call::out_bytes() const { return QRows(*this) * q_heads * v_head_dim * SizeOf(dtype); }
int64_t Call::lse_bytes() const { return return_lse ? 4 * QRows(*this) * q_heads : 0; }
int64_t Call::weights_bytes() const {
  const int64_t rows = return_weights ? q_len : static_cast<int64_t>(weight_rows.size());
  return 4 * batch * q_heads * rows * kv_len;
}
int64_t Call::weight_rows_bytes() const { return 8 * static_cast<int64_t>(weight_rows.size()); }

std::vector<Problem> MakeProblems(const Call& c, const CallTensors& t) {
  const int64_t size = SizeOf(c.dtype);
  const Placement q = Place(c.layout, c.q_len, c.q_heads, c.head_dim);
  const Placement k = Place(c.layout, c.kv_len, c.kv_heads, c.head_dim);
  const Placement v = Place(c.layout, c.kv_len, c.kv_heads, c.v_head_dim);
  const Placement o = Place(c.layout, c.q_len, c.q_heads, c.v_head_dim);
  std::vector<Problem> problems(c.batch);
  int64_t q_start = 0, kv_start = 0;  // packed: tokens before this sequence
  for (int64_t b = 0; b < c.batch; ++b) {
    Problem& p = problems[b];
    p.q_len = c.q_lengths.empty() ? c.q_len : c.q_lengths[b];
    p.kv_len = c.kv_lengths.empty() ? c.kv_len : c.kv_lengths[b];
    p.q_len_padded = Packed(c) ? p.q_len : c.q_len;
    p.kv_len_padded = Packed(c) ? p.kv_len : c.kv_len;
    p.q_heads = c.q_heads;
    p.kv_heads = c.kv_heads;
    p.q_strides = q.strides;
    p.k_strides = k.strides;
    p.v_strides = v.strides;
    p.out_strides = o.strides;
    const bool packed = Packed(c);
    p.q = OffsetBytes(t.q, size * (packed ? q_start * q.strides.token : b * q.sequence));
    p.k = OffsetBytes(t.k, size * (packed ? kv_start * k.strides.token : b * k.sequence));
    p.v = OffsetBytes(t.v, size * (packed ? kv_start * v.strides.token : b * v.sequence));
    p.out = OffsetBytes(t.out, size * (packed ? q_start * o.strides.token : b * o.sequence));
    if (c.return_lse) {
      p.lse = Offset(t.lse, packed ? q_start : b * c.q_heads * c.q_len);
      p.lse_head_stride = c.q_len;
    }
    p.scale = c.scale.value_or(1.0f / std::sqrt(static_cast<float>(c.head_dim)));
    p.softcap = c.softcap;
    p.causal = c.causal;
    p.window_left = c.window_left;
    p.window_right = c.window_right;
    if (c.bias) {
      p.bias = OffsetBytes(t.bias, BroadcastOffset(*c.bias, b) * (c.bias_is_fp32 ? 4 : size));
      p.bias_is_fp32 = c.bias_is_fp32;
      p.bias_strides = Broadcast(*c.bias);
    }
    if (c.mask) {
      p.mask = Offset(t.mask, BroadcastOffset(*c.mask, b));
      p.mask_strides = Broadcast(*c.mask);
    }
    if (c.alibi_slopes) p.alibi_slopes = Offset(t.alibi_slopes, c.alibi_per_batch ? b * c.q_heads : 0);
    if (c.sinks) p.sinks = t.sinks;
    const int64_t weight_rows = c.return_weights ? c.q_len : static_cast<int64_t>(c.weight_rows.size());
    if (weight_rows > 0) {
      p.weights_row_stride = c.kv_len;
      p.weights_head_stride = weight_rows * c.kv_len;
      p.weights = Offset(t.weights, b * c.q_heads * p.weights_head_stride);
      p.weight_rows = c.return_weights ? nullptr : t.weight_rows;
      p.weight_row_count = static_cast<int64_t>(c.weight_rows.size());
    }
    q_start += p.q_len;
    kv_start += p.kv_len;
  }
  return problems;
}

Launch MakeLaunch(const Call& c, std::span<const Problem> problems) {
  Launch launch;
  launch.kernel = ResolveKernel(c.kernel, c.return_weights);
  launch.dtype = c.dtype;
  launch.head_dim = c.head_dim;
  launch.v_head_dim = c.v_head_dim;
  launch.problems = problems;
  return launch;
}

}  // namespace attend
