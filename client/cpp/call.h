// One Attend call: its attempts, the waits between them, and its end.
//
//   Start ──► attempt ──► OnAttemptDone ──► decode, or error ──► caller's memory free? ──► done
//                ▲              │ may be tried again                   │ not yet
//                └── backoff ◄──┘                                      └──► wait a little
#ifndef ATTEND_CLIENT_CPP_CALL_H_
#define ATTEND_CLIENT_CPP_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "attend/client.h"
#include "client/cpp/channels.h"
#include "client/cpp/wire.h"

namespace attend {
inline namespace client {

class Call final : public std::enable_shared_from_this<Call> {
 public:
  struct Params {
    EncodedRequest request;
    ResultBuffers buffers;
    std::string request_id;
    std::string traceparent;
    RetryPolicy retry;
    absl::Time deadline;
  };
  using Done = std::function<void(absl::StatusOr<Response>)>;

  // The channels outlive done, not the call: the thread that frees it is one of gRPC's, where the last
  // channel of a process must not end (gRPC would wait there for that very thread).
  Call(ChannelSet* channels, Params params, Done done);

  // Sends the first attempt. done is called exactly once, when no slice aliases the caller's memory any
  // more, on one of gRPC's threads.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the call with kCancelled unless it has ended already. Thread-safe.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Attempt;

  void StartAttempt() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAttemptDone(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // How long to wait before another attempt; nullopt where there is to be none.
  std::optional<absl::Duration> RetryDelay(const absl::Status& status, const Attempt& attempt);
  void RetryAfter(absl::Duration delay) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<grpc::Alarm> SetAlarm(absl::Duration delay, void (Call::*then)());
  void Finish(absl::StatusOr<Response> result);
  void FinishWhenMemoryIsFree() ABSL_LOCKS_EXCLUDED(mutex_);

  ChannelSet* const channels_;
  const Params params_;
  const SliceCount slices_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Attempt> attempt_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Alarm> backoff_ ABSL_GUARDED_BY(mutex_);  // of the wait for the next attempt

  // Touched by one thread at a time: by the attempt, the alarm or the end, which follow each other.
  Done done_;
  int attempts_ = 0;
  ChannelSet::Lease lease_;  // of the last attempt
  std::optional<absl::StatusOr<Response>> result_;
};

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_CPP_CALL_H_
