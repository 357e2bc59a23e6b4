#include "tests/kernels/accuracy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/host_float.h"
#include "tests/kernels/reference.h"

namespace attend::test {
namespace {

// What unit-normal inputs stay below: |q·k|/sqrt(d) of head_dims from 64, and |v|.
constexpr double kNormalScore = 6.0;
constexpr double kNormalValue = 6.0;

// A maximum over fewer elements than this says little: plain arithmetic may have been lucky in all of them.
constexpr size_t kFewElements = 64;

struct Differences {
  double max = 0;
  double rms_relative = 0;
  std::string wrong;  // the first place where NaN or Inf differ, or the largest difference
};

bool SameKind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

// got(i) against want[i]; name(i) says where that is.
template <typename Got, typename Where>
Differences Compare(const std::vector<double>& want, const Got& got, const Where& where) {
  Differences d;
  double error = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = got(i);
    const auto describe = [&] {
      return where(i) + ": got " + std::to_string(g) + ", want " + std::to_string(want[i]);
    };
    if (!SameKind(g, want[i])) {
      d.max = INFINITY;
      d.wrong = describe();
      return d;
    }
    if (!std::isfinite(g)) continue;
    const double difference = std::fabs(g - want[i]);
    if (difference > d.max) {
      d.max = difference;
      d.wrong = describe();
    }
    error += difference * difference;
    square += want[i] * want[i];
  }
  if (square > 0) d.rms_relative = std::sqrt(error / square);
  return d;
}

void ExpectOut(const Launch& launch, const Problem& p, const Expected& want) {
  const DataType type = launch.partial ? DataType::kFp32 : launch.dtype;
  const int64_t dim = launch.v_head_dim;
  const auto got = [&](size_t at) {
    const int64_t i = static_cast<int64_t>(at) / dim / p.q_heads,
                  h = static_cast<int64_t>(at) / dim % p.q_heads;
    return Load(p.out, type,
                i * p.out_strides.token + h * p.out_strides.head + static_cast<int64_t>(at) % dim);
  };
  const auto where = [&](size_t at) {
    return "out[row " + std::to_string(at / dim / p.q_heads) + ", head " +
           std::to_string(at / dim % p.q_heads) + ", " + std::to_string(at % dim) + "]";
  };
  const Differences d = Compare(want.out, got, where);
  const double values = std::max(1.0, want.value_max / kNormalValue);
  if (launch.dtype == DataType::kFp32) {
    // An error of a score is a relative error of its weight, and grows with the products that are summed.
    const double spread = std::fabs(p.scale) * std::sqrt(launch.head_dim);
    const bool plain = spread <= 1.001 && p.bias == nullptr && p.alibi_slopes == nullptr && p.softcap == 0;
    const double scores =
        std::max(1.0, want.score_max / kNormalScore) * (plain ? 1.0 : 2 * std::max(1.0, spread));
    EXPECT_LE(d.max, 2e-6 * values * scores) << d.wrong;
    return;
  }
  const Expected plain = Reference(launch, p, Arithmetic::kInputType);
  const Differences low = Compare(
      want.out, [&](size_t at) { return plain.out[at]; }, where);
  // Few elements are held to what rounding weights and output, half a unit each, can make of the values.
  const double unit = launch.dtype == DataType::kFp16 ? 0x1p-10 : 0x1p-7;
  const double rounding = want.out.size() < kFewElements ? unit * want.value_max : 0;
  EXPECT_LE(d.max, std::max(2 * low.max + 1e-5 * values, rounding)) << d.wrong;
  EXPECT_LE(d.rms_relative, std::max(launch.dtype == DataType::kFp16 ? 2e-3 : 1.5e-2, 2 * low.rms_relative))
      << d.wrong;
}

void ExpectLse(const Launch& launch, const Problem& p, const Expected& want) {
  const auto got = [&](size_t at) {
    const int64_t h = static_cast<int64_t>(at) / p.q_len_padded,
                  i = static_cast<int64_t>(at) % p.q_len_padded;
    return p.lse[h * p.lse_head_stride + i];
  };
  const auto where = [&](size_t at) {
    return "lse[head " + std::to_string(at / p.q_len_padded) + ", row " +
           std::to_string(at % p.q_len_padded) + "]";
  };
  const Differences d = Compare(want.lse, got, where);
  const double bound = launch.dtype == DataType::kFp32 ? 1e-5 : 1e-3;
  EXPECT_LE(d.max, bound * std::max(1.0, want.score_max / kNormalScore)) << d.wrong;
}

void ExpectWeights(const Launch& launch, const Problem& p, const Expected& want) {
  const int64_t rows = p.weight_rows == nullptr ? p.q_len_padded : p.weight_row_count;
  const auto place = [&](size_t at, int64_t& h, int64_t& r, int64_t& j) {
    j = static_cast<int64_t>(at) % p.kv_len_padded;
    r = static_cast<int64_t>(at) / p.kv_len_padded % rows;
    h = static_cast<int64_t>(at) / p.kv_len_padded / rows;
  };
  const auto got = [&](size_t at) {
    int64_t h, r, j;
    place(at, h, r, j);
    return p.weights[h * p.weights_head_stride + r * p.weights_row_stride + j];
  };
  const auto where = [&](size_t at) {
    int64_t h, r, j;
    place(at, h, r, j);
    return "weights[head " + std::to_string(h) + ", " + std::to_string(r) + ", key " + std::to_string(j) +
           "]";
  };
  const Differences d = Compare(want.weights, got, where);
  const double bound = launch.dtype == DataType::kFp32 ? 2e-6 : 1e-4;
  EXPECT_LE(d.max, bound * std::max(1.0, want.score_max / kNormalScore)) << d.wrong;
}

}  // namespace

void ExpectAccurate(const Launch& launch, const Problem& problem) {
  const Expected want = Reference(launch, problem);
  ExpectOut(launch, problem, want);
  if (problem.lse != nullptr) ExpectLse(launch, problem, want);
  if (problem.weights != nullptr) ExpectWeights(launch, problem, want);
}

void ExpectAccurate(const Launch& launch) {
  for (size_t i = 0; i < launch.problems.size(); ++i) {
    SCOPED_TRACE("problem " + std::to_string(i));
    ExpectAccurate(launch, launch.problems[i]);
  }
}

}  // namespace attend::test
