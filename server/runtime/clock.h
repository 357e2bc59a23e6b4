// Time as the runtime sees it, so that tests can turn it by hand.
#ifndef ATTEND_SERVER_RUNTIME_CLOCK_H_
#define ATTEND_SERVER_RUNTIME_CLOCK_H_

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attend::server {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  // Waits, with mutex held, until cv is signalled or the time has come; may return early.
  virtual void WaitUntil(absl::CondVar* cv, absl::Mutex* mutex, absl::Time time) = 0;

  // The system's clock. Never destroyed.
  static Clock* Real();
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_CLOCK_H_
