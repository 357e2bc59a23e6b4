#include "kernels/merge.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/float16.h"

namespace attend {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

void StoreRow(DataType dtype, const std::vector<float>& row, void* out, int64_t at) {
  for (size_t d = 0; d < row.size(); ++d) {
    const int64_t i = at + static_cast<int64_t>(d);
    switch (dtype) {
      case DataType::kFp32:
        static_cast<float*>(out)[i] = row[d];
        break;
      case DataType::kFp16:
        static_cast<uint16_t*>(out)[i] = ToFp16Bits(row[d]);
        break;
      case DataType::kBf16:
        static_cast<uint16_t*>(out)[i] = ToBf16Bits(row[d]);
        break;
    }
  }
}

// Each part's share of one row, exp(lse_part - lse), into shares; returns lse. Where nothing was seen all
// shares are 0. NaN in any part makes the row NaN.
float Shares(std::span<const PartialState> parts, int64_t row, float sink, std::vector<float>& shares) {
  float max = sink;
  bool nan = false;
  for (const PartialState& part : parts) {
    nan |= std::isnan(part.lse[row]);
    if (part.lse[row] > max) max = part.lse[row];
  }
  std::fill(shares.begin(), shares.end(), 0.0f);
  if (nan) {
    std::fill(shares.begin(), shares.end(), std::numeric_limits<float>::quiet_NaN());
    return shares[0];
  }
  if (max == kNothing) return kNothing;
  double sum = sink == kNothing ? 0.0 : std::exp(static_cast<double>(sink) - max);
  std::vector<double> terms(parts.size(), 0.0);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].lse[row] != kNothing) terms[i] = std::exp(static_cast<double>(parts[i].lse[row]) - max);
    sum += terms[i];
  }
  for (size_t i = 0; i < parts.size(); ++i) shares[i] = static_cast<float>(terms[i] / sum);
  return static_cast<float>(max + std::log(sum));
}

}  // namespace

absl::Status MergePartials(std::span<const PartialState> parts, int64_t rows, int32_t v_head_dim,
                           DataType dtype, const float* sinks, void* out, float* lse) {
  if (parts.empty()) return absl::InvalidArgumentError("parts: at least one partial state is needed");
  std::vector<float> shares(parts.size());
  std::vector<float> merged(v_head_dim);
  for (int64_t row = 0; row < rows; ++row) {
    const float row_lse = Shares(parts, row, sinks != nullptr ? sinks[row] : kNothing, shares);
    std::fill(merged.begin(), merged.end(), 0.0f);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].lse[row] == kNothing) continue;  // neutral: its out counts for nothing, NaN included
      const float* part = parts[i].out + row * v_head_dim;
      for (int32_t d = 0; d < v_head_dim; ++d) merged[d] += shares[i] * part[d];
    }
    StoreRow(dtype, merged, out, row * v_head_dim);
    if (lse != nullptr) lse[row] = row_lse;
  }
  return absl::OkStatus();
}

}  // namespace attend
