// Waiting for what another thread or process brings about.
#ifndef ATTEND_TESTS_INTEGRATION_EVENTUALLY_H_
#define ATTEND_TESTS_INTEGRATION_EVENTUALLY_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace attend::integration {

// Asks again and again until condition() holds: whether it did within two minutes, which only a test that
// fails waits for.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time until = absl::Now() + absl::Minutes(2);
  while (!condition()) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_EVENTUALLY_H_
