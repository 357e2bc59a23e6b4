// Unary methods whose messages are small: one function from request to reply.
#ifndef ATTEND_SERVER_PROCESS_SMALL_CALL_H_
#define ATTEND_SERVER_PROCESS_SMALL_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/process/call_registry.h"
#include "server/process/generic_server.h"

namespace attend::server {

// Thread-safe. Called with the request message and gives the reply message.
using SmallMethod = std::function<absl::StatusOr<std::string>(const std::string& request)>;
// Told how a call ended, and how long it took.
using SmallEnd = std::function<void(absl::StatusCode code, absl::Duration time)>;

// Largest request of such a method.
inline constexpr int64_t kSmallRequestMax = 64 << 10;

grpc::ByteBuffer ToByteBuffer(const std::string& bytes);
// InvalidArgument where the message is larger than kSmallRequestMax.
absl::StatusOr<std::string> ToSmallString(grpc::ByteBuffer* message);

// One call of a method. Refuses, as Attend does, in a drain and above calls_max; ends where the request does
// not arrive within the limit. Deletes itself.
class SmallCall final : public GenericCall::Handler, private CallRegistry::Member {
 public:
  SmallCall(GenericCall* call, CallRegistry* registry, absl::Duration receive_timeout, SmallMethod method,
            SmallEnd end);

 private:
  void Start() override;
  void OnReadDone(bool ok) override;
  void OnCancel() override {}
  void OnDone() override;
  void OnSweep(absl::Time now) override;
  // False where another was quicker.
  bool TakeReply();
  void Finish(const absl::Status& status);

  GenericCall* const call_;
  CallRegistry* const registry_;
  const absl::Time started_;
  const absl::Time due_;
  const SmallMethod method_;
  const SmallEnd end_;
  bool registered_ = false;
  CallRegistry::Handle registration_;
  grpc::ByteBuffer message_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  absl::Mutex mutex_;
  bool replying_ ABSL_GUARDED_BY(mutex_) = false;
};

// A call that is refused at its headers. Deletes itself.
class RefusedCall final : public GenericCall::Handler {
 public:
  RefusedCall(GenericCall* call, absl::Status status, SmallEnd end);

 private:
  void Start() override;
  void OnReadDone(bool) override {}
  void OnCancel() override {}
  void OnDone() override;

  GenericCall* const call_;
  const absl::Status status_;
  const absl::Time started_;
  const SmallEnd end_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_SMALL_CALL_H_
