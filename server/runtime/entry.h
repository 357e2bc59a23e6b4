// The scheduler's record of one admitted request.
#ifndef ATTEND_SERVER_RUNTIME_ENTRY_H_
#define ATTEND_SERVER_RUNTIME_ENTRY_H_

#include <compare>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "kernels/attention.h"
#include "server/runtime/job.h"

namespace attend::server {

struct Flow;  // fair_queue.h

// Entries of one group may share a launch, and are alike in where they may run.
struct GroupKey {
  Kernel kernel = Kernel::kFlash;
  DataType dtype = DataType::kFp32;
  int32_t head_dim = 0;
  int32_t v_head_dim = 0;
  bool long_request = false;
  bool short_request = false;
  uint64_t devices = 0;  // bit i: device i can run it

  auto operator<=>(const GroupKey&) const = default;
};

// admitted -> waiting -> running -> finished, or from waiting (and, at Submit, admitted) straight to
// finished. The entry ends with its admission.
enum class EntryState : uint8_t { kAdmitted, kWaiting, kRunning, kFinished };

struct Entry {
  uint64_t id = 0;
  // The call's cost, fixed at admission.
  GroupKey group;
  int64_t host_bytes = 0;
  int64_t tokens = 0;
  absl::InlinedVector<int64_t, 8> device_bytes;  // by device; meaningless where group.devices has no bit
  absl::Duration cost;                           // predicted, on the first device that can run it

  EntryState state = EntryState::kAdmitted;
  bool cancelled = false;
  int staged_on = -1;        // device, until it runs or is finished
  std::unique_ptr<Job> job;  // while waiting or running
  absl::Time submitted;

  // Owned by FairQueue while waiting.
  Flow* flow = nullptr;
  absl::Time urgency;    // order within the flow, the earliest first
  bool ready = false;    // has waited for company long enough
  int64_t bypassed = 0;  // batches formed past it because device memory was taken
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_ENTRY_H_
