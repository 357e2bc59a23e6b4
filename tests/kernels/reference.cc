#include "tests/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/host_float.h"

namespace attend::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Round(Arithmetic arithmetic, DataType dtype, double x) {
  return arithmetic == Arithmetic::kExact ? x : RoundTo(dtype, static_cast<float>(x));
}

// Keys and values of one head, widened.
struct KeyValues {
  std::vector<double> k;  // [kv_len, head_dim]
  std::vector<double> v;  // [kv_len, v_head_dim]
};

KeyValues Widen(const Launch& launch, const Problem& p, int64_t kv_head) {
  KeyValues kv;
  for (int64_t j = 0; j < p.kv_len; ++j) {
    const int64_t k = KOffset(p, j, kv_head);
    for (int64_t d = 0; d < launch.head_dim; ++d) kv.k.push_back(Load(p.k, launch.dtype, k + d));
    const int64_t v = VOffset(p, j, kv_head);
    for (int64_t d = 0; d < launch.v_head_dim; ++d) kv.v.push_back(Load(p.v, launch.dtype, v + d));
  }
  return kv;
}

// Scores of one row; -inf where the row may not see.
std::vector<double> Scores(const Launch& launch, const Problem& p, int64_t head, int64_t row,
                           const KeyValues& kv, Arithmetic arithmetic) {
  std::vector<double> q(launch.head_dim);
  for (int64_t d = 0; d < launch.head_dim; ++d) {
    q[d] = Load(p.q, launch.dtype, row * p.q_strides.token + head * p.q_strides.head + d);
  }
  std::vector<double> s(p.kv_len, -kInfinity);
  for (int64_t j = 0; j < p.kv_len; ++j) {
    if (!MaySee(p, head, row, j)) continue;
    double bias = 0;
    if (p.bias != nullptr) {
      const auto& b = p.bias_strides;
      const DataType type = p.bias_is_fp32 ? DataType::kFp32 : launch.dtype;
      bias = Load(p.bias, type, head * b.head + row * b.row + j * b.key);
      if (bias == -kInfinity) continue;  // counts as masked
      if (std::isfinite(bias)) bias = std::clamp(bias, -double{kBiasMax}, double{kBiasMax});
    }
    double dot = 0;
    for (int64_t d = 0; d < launch.head_dim; ++d) dot += q[d] * kv.k[j * launch.head_dim + d];
    double x = dot * p.scale;
    if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
    x += bias;
    if (p.alibi_slopes != nullptr) {
      x -= p.alibi_slopes[head] * std::fabs(static_cast<double>(row + p.kv_len - p.q_len - j));
    }
    s[j] = Round(arithmetic, launch.dtype, x);
  }
  return s;
}

// Turns scores into weights in place; returns the log-sum-exp.
double Softmax(std::vector<double>& s, const float* sink) {
  double max = sink != nullptr ? *sink : -kInfinity;
  bool nan = false;
  for (const double x : s) {
    nan |= std::isnan(x);
    max = std::max(max, x);
  }
  if (!nan && max == -kInfinity) {
    std::fill(s.begin(), s.end(), 0.0);
    return -kInfinity;
  }
  double sum = sink != nullptr ? std::exp(*sink - max) : 0.0;
  for (double& x : s) {
    x = x == -kInfinity ? 0.0 : std::exp(x - max);
    sum += x;
  }
  for (double& x : s) x /= sum;
  return max + std::log(sum);
}

}  // namespace

bool MaySee(const Problem& p, int64_t head, int64_t row, int64_t key) {
  // Distance of the key from the row's diagonal; 128 bits, because windows may be near 2^63.
  const __int128 diagonal = p.causal == Causal::kTopLeft ? static_cast<__int128>(row)
                                                         : static_cast<__int128>(row) + p.kv_len - p.q_len;
  const __int128 ahead = key - diagonal;
  if (p.causal != Causal::kNone && ahead > 0) return false;
  if (p.window_left != kUnbounded && -ahead > p.window_left) return false;
  if (p.window_right != kUnbounded && ahead > p.window_right) return false;
  if (p.mask != nullptr) {
    const auto& m = p.mask_strides;
    if (p.mask[head * m.head + row * m.row + key * m.key] == 0) return false;
  }
  return true;
}

int64_t KOffset(const Problem& p, int64_t key, int64_t head) {
  if (p.pages.table == nullptr) return key * p.k_strides.token + head * p.k_strides.head;
  return p.pages.table[key / p.pages.tokens] * p.pages.k_page_stride +
         key % p.pages.tokens * p.k_strides.token + head * p.k_strides.head;
}

int64_t VOffset(const Problem& p, int64_t key, int64_t head) {
  if (p.pages.table == nullptr) return key * p.v_strides.token + head * p.v_strides.head;
  return p.pages.table[key / p.pages.tokens] * p.pages.v_page_stride +
         key % p.pages.tokens * p.v_strides.token + head * p.v_strides.head;
}

Expected Reference(const Launch& launch, const Problem& p, Arithmetic arithmetic) {
  Expected e;
  e.out.assign(p.q_len_padded * p.q_heads * launch.v_head_dim, 0.0);
  e.lse.assign(p.q_heads * p.q_len_padded, -kInfinity);
  const bool all_rows = p.weight_rows == nullptr;
  const int64_t weight_rows = all_rows ? p.q_len_padded : p.weight_row_count;
  if (p.weights != nullptr) e.weights.assign(p.q_heads * weight_rows * p.kv_len_padded, 0.0);

  KeyValues kv;
  for (int64_t h = 0; h < p.q_heads; ++h) {
    const int64_t group = p.q_heads / p.kv_heads;
    if (h % group == 0) {
      kv = Widen(launch, p, h / group);
      for (const double x : kv.v) {
        if (std::isfinite(x)) e.value_max = std::max(e.value_max, std::fabs(x));
      }
    }
    const float* sink = p.sinks != nullptr && !launch.partial ? p.sinks + h : nullptr;
    for (int64_t i = 0; i < p.q_len; ++i) {
      std::vector<double> w = Scores(launch, p, h, i, kv, arithmetic);
      const std::vector<double> s = w;
      for (const double x : s) {
        if (std::isfinite(x)) e.score_max = std::max(e.score_max, std::fabs(x));
      }
      e.lse[h * p.q_len_padded + i] = Softmax(w, sink);
      for (int64_t j = 0; j < p.kv_len; ++j) {
        if (s[j] == -kInfinity) continue;  // not seen: no influence, NaN included
        const double weight = Round(arithmetic, launch.dtype, w[j]);
        for (int64_t d = 0; d < launch.v_head_dim; ++d) {
          e.out[(i * p.q_heads + h) * launch.v_head_dim + d] += weight * kv.v[j * launch.v_head_dim + d];
        }
      }
      for (int64_t r = 0; r < (e.weights.empty() ? 0 : weight_rows); ++r) {
        if ((all_rows ? r : p.weight_rows[r]) != i) continue;
        std::copy(w.begin(), w.end(), e.weights.begin() + (h * weight_rows + r) * p.kv_len_padded);
      }
    }
  }
  for (double& x : e.out) x = Round(arithmetic, launch.dtype, x);
  return e;
}

}  // namespace attend::test
