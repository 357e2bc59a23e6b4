// One Attend call, from its headers to the last byte of its reply.
//
//   headers -> grant of bytes -> read -> specs, admission, memory, tensors -> scheduler -> reply
//
// The call owns itself: OnDone deletes it. One owner at a time moves it on (gRPC's reaction, a wire thread,
// or the scheduler's done); whoever else has something to say (cancellation, time limits) changes
// the phase under the lock first, so that Finish is called exactly once.
#ifndef ATTEND_SERVER_PROCESS_ATTEND_CALL_H_
#define ATTEND_SERVER_PROCESS_ATTEND_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/memory/host_pool.h"
#include "server/metrics/metrics.h"
#include "server/process/byte_budget.h"
#include "server/process/call_log.h"
#include "server/process/call_registry.h"
#include "server/process/generic_server.h"
#include "server/process/wire_threads.h"
#include "server/runtime/scheduler.h"
#include "server/wire/decoder.h"

namespace attend::server {

// What all calls share. The pointees outlive every call.
struct CallServices {
  Scheduler* scheduler = nullptr;
  HostPool* pool = nullptr;
  // Large requests and small ones (small_bytes_max or less) stand in lines of their own: options.h.
  ByteBudget* large_budget = nullptr;
  ByteBudget* small_budget = nullptr;
  int64_t small_bytes_max = 0;
  CallRegistry* registry = nullptr;
  WireThreads* wire_threads = nullptr;
  Metrics* metrics = nullptr;
  CallLog* log = nullptr;
  DecodeLimits limits;
  int64_t unannounced_bytes = 0;
  int64_t wire_inline_bytes = 0;
  absl::Duration grant_timeout, receive_timeout, send_timeout;
};

class AttendCall final : public GenericCall::Handler,
                         private ByteBudget::Waiter,
                         private CallRegistry::Member {
 public:
  // The handler of this call. caller is the name by which fair shares go, empty for the peer's address, or
  // why the call is refused.
  AttendCall(const CallServices& services, GenericCall* call, absl::StatusOr<std::string> caller);

 private:
  enum class Phase { kWaiting, kReading, kDecoding, kRunning, kReplying };

  // GenericCall::Handler
  void Start() override;
  void OnReadDone(bool ok) override;
  void OnPosted() override;
  void OnCancel() override;
  void OnDone() override;

  void OnGranted() override;              // ByteBudget
  void OnSweep(absl::Time now) override;  // CallRegistry

  void ReadMetadata();
  // A request between its message and the scheduler.
  struct Arrival;

  // The message is here: everything up to the scheduler.
  void Process();
  // Everything up to the tensors' bytes, and those of a small request. Goes on on OK; anything else is the
  // answer.
  absl::Status Prepare(Arrival* arrival);
  // Memory for the tensors of job->call.
  absl::Status AllocateTensors(int64_t input_bytes, int64_t output_bytes, Job* job);
  // Helps with the copy; whoever copies the last piece ends the arrival.
  static void CopyPieces(const std::shared_ptr<Arrival>& arrival);
  void EndArrival(Arrival* arrival, absl::Status status);
  void OnJobDone(std::unique_ptr<Job> job, const absl::Status& status);
  // The job is back: answers the caller.
  void Reply();
  // Moves from one phase to the next; false where another was quicker.
  bool Move(Phase from, Phase to);
  // Ends the call. The caller has moved it to kReplying.
  void Fail(const absl::Status& status);
  void Send(Job& job);
  void ReleaseGrant();

  const CallServices& services_;
  GenericCall* const call_;
  const absl::StatusOr<std::string> caller_;
  const absl::Time started_;
  CallRecord record_;
  bool own_request_id_ = false;

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kWaiting;
  absl::Time phase_start_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool send_expired_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> admission_id_ ABSL_GUARDED_BY(mutex_);

  bool registered_ = false;
  CallRegistry::Handle registration_;
  int64_t announced_bytes_ = -1;  // -1: not announced
  ByteBudget* budget_ = nullptr;  // the one asked; set before the first wait
  int64_t granted_bytes_ = 0;
  bool incomplete_ = false;  // the call ended before its message had arrived
  grpc::ByteBuffer message_;
  std::unique_ptr<Job> job_;  // back from the scheduler, kept until the reply is sent
  absl::Status job_status_;
  grpc::ByteBuffer reply_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_ATTEND_CALL_H_
