#include "server/runtime/pace.h"

#include <algorithm>
#include <cmath>

namespace attend::server {
namespace {

// Busy time after which an observation has lost most of its weight.
constexpr double kMemorySeconds = 0.25;
// The same in batches: a machine that was suspended under a short one is soon forgotten, where as much busy
// time would take thousands of short ones.
constexpr double kMemoryBatches = 32;
// Of a batch whose time is too short to measure, or that was predicted to take none.
constexpr double kLeastSeconds = 1e-9;

}  // namespace

void Pace::Begin(absl::Time now) {
  // Idle time is nobody's.
  if (running_++ == 0) counted_until_ = now;
}

void Pace::End(absl::Duration predicted, absl::Time now) {
  --running_;
  const double busy = std::max(absl::ToDoubleSeconds(now - counted_until_), kLeastSeconds);
  counted_until_ = now;
  const double kept = std::exp(-std::max(busy / kMemorySeconds, 1 / kMemoryBatches));
  busy_ = busy_ * kept + busy;
  retired_ = retired_ * kept + std::max(absl::ToDoubleSeconds(predicted), kLeastSeconds);
}

}  // namespace attend::server
