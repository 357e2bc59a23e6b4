#include "server/runtime/clock.h"

#include "absl/time/clock.h"

namespace attend::server {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void WaitUntil(absl::CondVar* cv, absl::Mutex* mutex, absl::Time time) override {
    cv->WaitWithDeadline(mutex, time);
  }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace attend::server
