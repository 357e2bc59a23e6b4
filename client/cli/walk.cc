#include "client/cli/walk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/numbers.h"
#include "client/cli/reference.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What one exponential sum is worth relative to another maximum; 0 where there was nothing yet.
double Correction(double max_old, double max_new) {
  return max_old == -kInfinity ? 0 : std::exp(max_old - max_new);
}
double Weight(double score, double max) { return score == -kInfinity ? 0 : std::exp(score - max); }

// The row's scores and values, and where its softmax starts.
struct RowData {
  std::vector<double> scores;  // -inf where masked
  const Problem64* problem = nullptr;
  int64_t b = 0, kv_head = 0;
  double max = -kInfinity;  // the sink, where there is one
  double denominator = 0;   // 1 with a sink

  double V(size_t j, size_t d) const {
    return problem
        ->v[static_cast<size_t>(problem->KvRow(b, kv_head, static_cast<int64_t>(j), problem->v_head_dim)) +
            d];
  }
  size_t v_dim() const { return static_cast<size_t>(problem->v_head_dim); }
};

// Scores; their maximum; exponentials; their sum; weights; weighted sum. Each a pass of its own.
std::vector<double> Naive(const RowData& row) {
  std::vector<double> out(row.v_dim(), 0);
  double max = row.max;
  for (const double s : row.scores) max = std::max(max, s);
  if (max == -kInfinity) return out;
  std::vector<double> weights(row.scores.size());
  for (size_t j = 0; j < weights.size(); ++j) weights[j] = Weight(row.scores[j], max);
  double sum = row.denominator * Correction(row.max, max);
  for (const double w : weights) sum += w;
  for (double& w : weights) w /= sum;
  for (size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] == 0) continue;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weights[j] * row.V(j, d);
  }
  return out;
}

// Maximum and denominator together, key by key; then the weights, formed where they are used.
std::vector<double> Online(const RowData& row, int64_t& corrections) {
  std::vector<double> out(row.v_dim(), 0);
  double max = row.max, sum = row.denominator;
  for (const double s : row.scores) {
    if (s == -kInfinity) continue;
    if (s > max) {
      corrections += max == -kInfinity ? 0 : 1;
      sum *= Correction(max, s);
      max = s;
    }
    sum += Weight(s, max);
  }
  if (max == -kInfinity) return out;
  for (size_t j = 0; j < row.scores.size(); ++j) {
    const double weight = Weight(row.scores[j], max) / sum;
    if (weight == 0) continue;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * row.V(j, d);
  }
  return out;
}

// One pass: maximum, denominator and output together, all corrected when the maximum rises.
void Flash(const RowData& row, int64_t chunk_keys, Walk& walk) {
  std::vector<double> sum_out(row.v_dim(), 0);  // not yet divided by the denominator
  double max = row.max, denominator = row.denominator;
  for (size_t begin = 0; begin < row.scores.size(); begin += static_cast<size_t>(chunk_keys)) {
    ChunkState chunk;
    const size_t end = std::min(row.scores.size(), begin + static_cast<size_t>(chunk_keys));
    chunk.begin = static_cast<int64_t>(begin);
    chunk.end = static_cast<int64_t>(end);
    chunk.chunk_max = -kInfinity;
    for (size_t j = begin; j < end; ++j) {
      chunk.visible += row.scores[j] == -kInfinity ? 0 : 1;
      chunk.chunk_max = std::max(chunk.chunk_max, row.scores[j]);
    }
    chunk.max = std::max(max, chunk.chunk_max);
    chunk.correction = chunk.max == max ? 1 : Correction(max, chunk.max);
    max = chunk.max;
    denominator *= chunk.correction;
    for (double& x : sum_out) x *= chunk.correction;
    for (size_t j = begin; j < end; ++j) {
      const double weight = Weight(row.scores[j], max);
      if (weight == 0) continue;
      denominator += weight;
      for (size_t d = 0; d < sum_out.size(); ++d) sum_out[d] += weight * row.V(j, d);
    }
    chunk.denominator = denominator;
    chunk.out = sum_out;
    for (double& x : chunk.out) x = denominator > 0 ? x / denominator : 0;
    walk.chunks.push_back(std::move(chunk));
  }
  walk.out = walk.chunks.empty() ? sum_out : walk.chunks.back().out;
  walk.lse = denominator > 0 ? max + std::log(denominator) : -kInfinity;
}

std::vector<Pass> Passes(int64_t n, int64_t v_dim) {
  return {{"naive", "scores q*k", 0, n, ""},
          {"naive", "maximum", n, 0, "max"},
          {"naive", "exponentials", n, n, "max"},
          {"naive", "their sum", n, 0, "max, denominator"},
          {"naive", "weights, by division", n, n, ""},
          {"naive", "weighted sum of v", n, 0, "output"},
          {"online", "scores q*k", 0, n, ""},
          {"online", "maximum and denominator", n, 0, "max, denominator"},
          {"online", "weights and weighted sum of v", n, 0, "max, denominator, output"},
          {"flash", "all of it", 0, 0, absl::StrCat("max, denominator, output: ", v_dim + 2, " numbers")}};
}

std::string Join(const std::vector<double>& values, size_t columns) {
  std::string text;
  for (size_t i = 0; i < std::min(columns, values.size()); ++i)
    absl::StrAppendFormat(&text, "%9.5f", values[i]);
  return values.size() > columns ? text + " ..." : text;
}

std::string Number(double value) { return absl::StrFormat("%.6f", value); }

}  // namespace

absl::StatusOr<Walk> WalkRow(const Request& request, int64_t b, int64_t h, int64_t i, int64_t chunk_keys) {
  const absl::StatusOr<Problem64> problem = MakeProblem64(request);
  if (!problem.ok()) return problem.status();
  if (b < 0 || b >= problem->batch || h < 0 || h >= problem->q_heads) {
    return absl::InvalidArgumentError(absl::StrCat("there is no head ", h, " of sequence ", b,
                                                   "; sequences: ", problem->batch,
                                                   ", heads: ", problem->q_heads));
  }
  if (i < 0 || i >= problem->q_lengths[b]) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no row ", i, " of sequence ", b, "; rows: ", problem->q_lengths[b]));
  }
  RowData row;
  row.problem = &*problem;
  row.b = b;
  row.kv_head = h / (problem->q_heads / problem->kv_heads);
  for (int64_t j = 0; j < problem->kv_lengths[b]; ++j)
    row.scores.push_back(Score(request, *problem, b, h, i, j));
  if (request.sinks) {
    row.max = ToDouble(request.sinks->dtype, request.sinks->data, h);
    row.denominator = 1;
  }
  Walk walk;
  Flash(row, chunk_keys, walk);
  walk.naive_out = Naive(row);
  walk.online_out = Online(row, walk.online_corrections);
  walk.passes = Passes(static_cast<int64_t>(row.scores.size()), problem->v_head_dim);
  return walk;
}

nlohmann::ordered_json ToJson(const Walk& walk) {
  auto chunks = nlohmann::ordered_json::array();
  for (const ChunkState& c : walk.chunks) {
    chunks.push_back({{"keys", {c.begin, c.end}},
                      {"visible", c.visible},
                      {"chunk_max", c.chunk_max},
                      {"max", c.max},
                      {"correction", c.correction},
                      {"denominator", c.denominator},
                      {"out", c.out}});
  }
  auto passes = nlohmann::ordered_json::array();
  for (const Pass& p : walk.passes) {
    passes.push_back({{"kernel", p.kernel},
                      {"pass", p.what},
                      {"read", p.read},
                      {"written", p.written},
                      {"keeps", p.keeps}});
  }
  return {{"chunks", chunks},
          {"out", walk.out},
          {"lse", walk.lse},
          {"naive_out", walk.naive_out},
          {"online_out", walk.online_out},
          {"online_corrections", walk.online_corrections},
          {"passes", passes}};
}

std::string ToText(const Walk& walk, size_t out_columns) {
  std::string text =
      "FLASH reads the keys once, chunk by chunk, and corrects what it has by exp(max before - max now):\n\n";
  Table chunks(
      {"keys", "visible", "max of chunk", "max so far", "correction", "denominator", "output so far"});
  for (const ChunkState& c : walk.chunks) {
    chunks.Add({absl::StrCat(c.begin, "..", c.end - 1), absl::StrCat(c.visible), Number(c.chunk_max),
                Number(c.max), Number(c.correction), Number(c.denominator), Join(c.out, out_columns)});
  }
  absl::StrAppend(&text, chunks.ToString(), "\n  log-sum-exp = max + log(denominator) = ", Number(walk.lse),
                  "\n\n", "What each kernel carries through memory for this row, in numbers:\n\n");
  Table passes({"kernel", "pass", "reads", "writes", "keeps at hand"});
  for (const Pass& p : walk.passes) {
    passes.Add({p.kernel, p.what, absl::StrCat(p.read), absl::StrCat(p.written), p.keeps});
  }
  absl::StrAppend(&text, passes.ToString(), "\n");
  Table outs({"kernel", "output"});
  outs.Add({"naive", Join(walk.naive_out, out_columns)});
  outs.Add({"online", absl::StrCat(Join(walk.online_out, out_columns), "   (", walk.online_corrections,
                                   " corrections, key by key)")});
  outs.Add({"flash", Join(walk.out, out_columns)});
  return absl::StrCat(text, outs.ToString());
}

}  // namespace attend::cli
