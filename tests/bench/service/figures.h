// What the benchmarks of this folder share: inputs, and figures over rounds.
#ifndef ATTEND_TESTS_BENCH_SERVICE_FIGURES_H_
#define ATTEND_TESTS_BENCH_SERVICE_FIGURES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace attend::bench {

// Fills with random fp16 of magnitudes from 0.25 to 2, little-endian. An even number of bytes.
inline void FillHalves(std::span<std::byte> bytes, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    // 0x3400 is 0.25 in fp16, 0x4000 is 2.
    const uint32_t drawn = random();
    const uint32_t half = (drawn & 0x8000u) | (0x3400u + (drawn >> 16) % 0xC00u);
    bytes[i] = static_cast<std::byte>(half & 0xFFu);
    bytes[i + 1] = static_cast<std::byte>(half >> 8);
  }
}

// The smallest of the sorted values that a share p of them, in [0, 1], does not exceed; 0 of none.
inline double Percentile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

struct Figures {
  double median = 0, least = 0, most = 0;
};

// Of at least one value.
inline Figures Summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

// Of each round, one side's figure by the other's.
inline Figures Ratio(const std::vector<double>& mine, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (size_t i = 0; i < mine.size(); ++i) ratios.push_back(mine[i] / others[i]);
  return Summary(std::move(ratios));
}

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_SERVICE_FIGURES_H_
