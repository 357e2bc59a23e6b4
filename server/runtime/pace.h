// How fast a device works off what was predicted: predicted time that it retires in a second of its own.
// Predictions come from FLOPs and bytes and are rough; waits are told by what launches have really taken.
#ifndef ATTEND_SERVER_RUNTIME_PACE_H_
#define ATTEND_SERVER_RUNTIME_PACE_H_

#include "absl/time/time.h"

namespace attend::server {

// Not thread-safe.
class Pace {
 public:
  // A batch of this predicted time is handed to the device.
  void Begin(absl::Time now);
  // It has ended.
  void End(absl::Duration predicted, absl::Time now);

  // About how long work of this predicted time takes. Until a batch has ended, predictions are taken at
  // their word.
  absl::Duration Real(absl::Duration predicted) const {
    return retired_ > 0 ? predicted * (busy_ / retired_) : predicted;
  }

 private:
  int running_ = 0;
  absl::Time counted_until_ = absl::InfinitePast();  // busy time up to here is in busy_
  // Seconds, the recent ones weighing most.
  double retired_ = 0;
  double busy_ = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_PACE_H_
