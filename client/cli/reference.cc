#include "client/cli/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/numbers.h"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The element of a tensor broadcast to [B,Hq,Lq,Lk].
double Broadcast(const TensorView& t, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t at[] = {b, h, i, j};
  int64_t index = 0;
  for (size_t d = 0; d < 4; ++d) index = index * t.shape[d] + (t.shape[d] == 1 ? 0 : at[d]);
  return ToDouble(t.dtype, t.data, index);
}

// One row: its weights over all keys of the sequence, and its log-sum-exp.
struct Row {
  std::vector<double> weights;
  double lse = -kInfinity;
};

Row SoftmaxRow(const Request& request, const Problem64& g, int64_t b, int64_t h, int64_t i) {
  const auto kv_len = static_cast<size_t>(g.kv_lengths[b]);
  Row row;
  row.weights.resize(kv_len);
  const double sink = request.sinks ? ToDouble(request.sinks->dtype, request.sinks->data, h) : -kInfinity;
  double max = sink;
  for (size_t j = 0; j < kv_len; ++j) {
    row.weights[j] = Score(request, g, b, h, i, static_cast<int64_t>(j));
    // Not std::max, which would lose a NaN.
    if (!std::isnan(max) && !(row.weights[j] <= max)) max = row.weights[j];
  }
  if (max == -kInfinity) {
    std::fill(row.weights.begin(), row.weights.end(), 0.0);
    return row;
  }
  double sum = request.sinks ? std::exp(sink - max) : 0;
  for (double& w : row.weights) {
    // A masked key has weight 0 whatever the maximum is.
    w = w == -kInfinity ? 0 : std::exp(w - max);
    sum += w;
  }
  for (double& w : row.weights) w /= sum;
  row.lse = max + std::log(sum);
  return row;
}

// Lengths of sequences: within the padded length, or adding up to the total.
absl::Status CheckLengths(const char* name, const std::vector<int64_t>& lengths, int64_t bound, bool packed) {
  int64_t left = bound;
  for (const int64_t length : lengths) {
    if (length < 0 || length > (packed ? left : bound)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", length, " does not fit into ", bound));
    }
    left -= length;
  }
  if (packed && left != 0) return absl::InvalidArgumentError(absl::StrCat(name, " do not add up to ", bound));
  return absl::OkStatus();
}

// A tensor of one of the shapes, where a size of 1 in a broadcast tensor stands for any.
absl::Status CheckShape(const char* name, const std::optional<TensorView>& tensor,
                        const std::vector<Shape>& shapes, bool broadcast) {
  if (!tensor) return absl::OkStatus();
  for (const Shape& shape : shapes) {
    bool fits = tensor->shape.size() == shape.size();
    for (size_t d = 0; fits && d < shape.size(); ++d) {
      fits = tensor->shape[d] == shape[d] || (broadcast && tensor->shape[d] == 1);
    }
    if (fits) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", ToString(tensor->shape), ", must be ", ToString(shapes.back())));
}

// What else must fit for no index to lie outside of a tensor.
absl::Status CheckIndices(const Request& request, const Problem64& p) {
  const bool packed = p.layout == Layout::kPacked;
  absl::Status status = CheckLengths("q_lengths", p.q_lengths, p.q_len, packed);
  status.Update(CheckLengths("kv_lengths", p.kv_lengths, p.kv_len, packed));
  const Shape scores = {p.batch, p.q_heads, p.q_len, p.kv_len};
  status.Update(CheckShape("bias", request.bias, {scores}, true));
  status.Update(CheckShape("mask", request.mask, {scores}, true));
  status.Update(CheckShape("alibi_slopes", request.alibi_slopes, {{p.batch, p.q_heads}, {p.q_heads}}, false));
  status.Update(CheckShape("sinks", request.sinks, {{p.q_heads}}, false));
  if (packed && (request.bias || request.mask || request.return_weights || !request.weight_rows.empty())) {
    status.Update(absl::InvalidArgumentError("bias, mask and weights need a dense layout"));
  }
  return status;
}

}  // namespace

int64_t Problem64::QRow(int64_t b, int64_t h, int64_t i, int64_t dim) const {
  if (layout == Layout::kPacked) return ((q_starts[b] + i) * q_heads + h) * dim;
  if (layout == Layout::kBlhd) return ((b * q_len + i) * q_heads + h) * dim;
  return ((b * q_heads + h) * q_len + i) * dim;
}

int64_t Problem64::KvRow(int64_t b, int64_t h, int64_t j, int64_t dim) const {
  if (layout == Layout::kPacked) return ((kv_starts[b] + j) * kv_heads + h) * dim;
  if (layout == Layout::kBlhd) return ((b * kv_len + j) * kv_heads + h) * dim;
  return ((b * kv_heads + h) * kv_len + j) * dim;
}

int64_t Problem64::Lse(int64_t b, int64_t h, int64_t i) const {
  return layout == Layout::kPacked ? h * q_len + q_starts[b] + i : (b * q_heads + h) * q_len + i;
}

std::pair<int64_t, int64_t> Problem64::VisibleKeys(const Request& request, int64_t b, int64_t i) const {
  const int64_t keys = kv_lengths[b];
  const int64_t diagonal = request.causal == Causal::kTopLeft ? i : i + keys - q_lengths[b];
  int64_t begin = 0, end = keys;
  if (request.causal != Causal::kNone) end = std::min(end, diagonal + 1);
  if (request.window_left) begin = std::max(begin, diagonal - *request.window_left);
  if (request.window_right) end = std::min(end, diagonal + *request.window_right + 1);
  return {begin, std::max(begin, end)};
}

absl::StatusOr<Problem64> MakeProblem64(const Request& request) {
  const Shape& q = request.q.shape;
  const Shape& k = request.k.shape;
  const Shape& v = request.v.shape;
  const bool packed = request.layout == Layout::kPacked;
  const size_t rank = packed ? 3 : 4;
  for (const auto& [name, shape] : {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v)}) {
    if (shape->size() != rank) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", ToString(*shape), "; layout ",
                                                     Name(request.layout), " has ", rank, " sizes"));
    }
  }
  Problem64 g;
  g.layout = request.layout;
  const size_t heads = request.layout == Layout::kBhld ? 1 : rank - 2;
  const size_t length = packed ? 0 : 3 - heads;
  g.batch = packed ? static_cast<int64_t>(request.q_lengths.size()) : q[0];
  g.q_heads = q[heads];
  g.kv_heads = k[heads];
  g.q_len = q[length];
  g.kv_len = k[length];
  g.head_dim = q.back();
  g.v_head_dim = v.back();
  Shape v_as_k = v;
  v_as_k.back() = k.back();
  if (k.back() != q.back() || v_as_k != k || (!packed && k[0] != q[0])) {
    return absl::InvalidArgumentError(
        absl::StrCat("q ", ToString(q), ", k ", ToString(k), " and v ", ToString(v), " do not fit together"));
  }
  if (g.kv_heads <= 0 || g.q_heads % g.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("q has ", g.q_heads, " heads, which is no multiple of k's ", g.kv_heads));
  }
  g.q_lengths = request.q_lengths;
  g.kv_lengths = request.kv_lengths;
  if (!packed && g.q_lengths.empty()) g.q_lengths.assign(static_cast<size_t>(g.batch), g.q_len);
  if (!packed && g.kv_lengths.empty()) g.kv_lengths.assign(static_cast<size_t>(g.batch), g.kv_len);
  if (static_cast<int64_t>(g.q_lengths.size()) != g.batch || g.kv_lengths.size() != g.q_lengths.size()) {
    return absl::InvalidArgumentError("q_lengths and kv_lengths must have one entry for each sequence");
  }
  const absl::Status indices = CheckIndices(request, g);
  if (!indices.ok()) return indices;
  const auto starts = [](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> sums(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), sums.begin(), int64_t{0});
    return sums;
  };
  g.q_starts = starts(g.q_lengths);
  g.kv_starts = starts(g.kv_lengths);
  g.q = ToDoubles(request.q);
  g.k = ToDoubles(request.k);
  g.v = ToDoubles(request.v);
  return g;
}

double Score(const Request& request, const Problem64& g, int64_t b, int64_t h, int64_t i, int64_t j) {
  const auto [begin, end] = g.VisibleKeys(request, b, i);
  if (j < begin || j >= end) return -kInfinity;
  if (request.mask && Broadcast(*request.mask, b, h, i, j) == 0) return -kInfinity;
  const double bias = request.bias ? Broadcast(*request.bias, b, h, i, j) : 0;
  if (bias == -kInfinity) return -kInfinity;

  const int64_t kv_head = h / (g.q_heads / g.kv_heads);
  const int64_t q_row = g.QRow(b, h, i, g.head_dim);
  const int64_t k_row = g.KvRow(b, kv_head, j, g.head_dim);
  double dot = 0;
  for (int64_t d = 0; d < g.head_dim; ++d) {
    dot += g.q[static_cast<size_t>(q_row + d)] * g.k[static_cast<size_t>(k_row + d)];
  }
  double score = dot * (request.scale ? *request.scale : 1 / std::sqrt(static_cast<double>(g.head_dim)));
  if (request.softcap) score = *request.softcap * std::tanh(score / *request.softcap);
  score += bias;
  if (request.alibi_slopes) {
    const bool per_batch = request.alibi_slopes->shape.size() == 2;
    const double slope =
        ToDouble(request.alibi_slopes->dtype, request.alibi_slopes->data, per_batch ? b * g.q_heads + h : h);
    score -= slope * std::fabs(static_cast<double>(i + g.kv_lengths[b] - g.q_lengths[b] - j));
  }
  return score;
}

absl::StatusOr<ReferenceResult> Reference(const Request& request) {
  const absl::StatusOr<Problem64> problem = MakeProblem64(request);
  if (!problem.ok()) return problem.status();
  const Problem64& g = *problem;
  const int64_t rows_wanted =
      request.return_weights ? g.q_len : static_cast<int64_t>(request.weight_rows.size());

  ReferenceResult result;
  result.out.assign(
      static_cast<size_t>(Elements(request.q.shape) / std::max<int64_t>(1, g.head_dim) * g.v_head_dim), 0);
  const int64_t rows = g.layout == Layout::kPacked ? g.q_heads * g.q_len : g.batch * g.q_heads * g.q_len;
  result.lse.assign(static_cast<size_t>(rows), -kInfinity);
  result.weights.assign(static_cast<size_t>(g.batch * g.q_heads * rows_wanted * g.kv_len), 0);
  for (int64_t b = 0; b < g.batch; ++b) {
    for (int64_t h = 0; h < g.q_heads; ++h) {
      const int64_t kv_head = h / (g.q_heads / g.kv_heads);
      for (int64_t i = 0; i < g.q_lengths[b]; ++i) {
        const Row row = SoftmaxRow(request, g, b, h, i);
        result.lse[static_cast<size_t>(g.Lse(b, h, i))] = row.lse;
        double* out = &result.out[static_cast<size_t>(g.QRow(b, h, i, g.v_head_dim))];
        for (size_t j = 0; j < row.weights.size(); ++j) {
          if (row.weights[j] == 0) continue;  // what has no weight has no influence, NaN included
          const int64_t v_row = g.KvRow(b, kv_head, static_cast<int64_t>(j), g.v_head_dim);
          for (int64_t d = 0; d < g.v_head_dim; ++d) {
            out[d] += row.weights[j] * g.v[static_cast<size_t>(v_row + d)];
          }
        }
        for (int64_t r = 0; r < rows_wanted; ++r) {
          if ((request.return_weights ? r : request.weight_rows[static_cast<size_t>(r)]) != i) continue;
          std::copy(row.weights.begin(), row.weights.end(),
                    &result.weights[static_cast<size_t>(((b * g.q_heads + h) * rows_wanted + r) * g.kv_len)]);
        }
      }
    }
  }
  return result;
}

}  // namespace attend::cli
