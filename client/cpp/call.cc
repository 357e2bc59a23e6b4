#include "client/cpp/call.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/status_internal.h"

namespace attend {
inline namespace client {
namespace {

constexpr char kMethod[] = "/attend.v1.AttentionService/Attend";
constexpr char kPushback[] = "grpc-retry-pushback-ms";
constexpr char kRequestId[] = "x-request-id";
// Lets the server reserve room before it reads; without it, it has to guess.
constexpr char kRequestBytes[] = "attend-request-bytes";
// gRPC lets go of a finished call's slices within microseconds, unless its peer stopped reading: then when
// the connection is closed (ClientOptions::stall_timeout).
constexpr absl::Duration kMemoryPoll = absl::Milliseconds(1);
constexpr int kMemorySpins = 100;

std::optional<std::string> Find(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                                const char* key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return std::nullopt;
  return std::string(it->second.data(), it->second.size());
}

}  // namespace

// gRPC's side of one attempt. Lives until OnDone has returned.
class Call::Attempt final : public grpc::ClientUnaryReactor {
 public:
  Attempt(std::shared_ptr<Call> call, const Params& params, const std::string& token)
      : call_(std::move(call)), request_(params.request.Encode(call_->slices_)) {
    context_.set_deadline(absl::ToChronoTime(params.deadline));
    context_.AddMetadata(kRequestId, params.request_id);
    context_.AddMetadata(kRequestBytes, absl::StrCat(params.request.bytes()));
    if (!params.traceparent.empty()) context_.AddMetadata("traceparent", params.traceparent);
    if (!token.empty()) context_.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }

  void Start(grpc::GenericStub& stub) {
    stub.PrepareUnaryCall(&context_, kMethod, {}, &request_, &response_, this);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnDone(const grpc::Status& status) override {
    request_.Clear();
    // The call may drop this attempt while it handles its end.
    const std::shared_ptr<Call> call = std::move(call_);
    call->OnAttemptDone(status);
  }

  grpc::ByteBuffer& response() { return response_; }
  std::optional<std::string> pushback() const {
    return Find(context_.GetServerTrailingMetadata(), kPushback);
  }
  // The server's id for the call, where it says one.
  std::optional<std::string> request_id() const {
    auto id = Find(context_.GetServerTrailingMetadata(), kRequestId);
    return id ? id : Find(context_.GetServerInitialMetadata(), kRequestId);
  }

 private:
  std::shared_ptr<Call> call_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, response_;
};

Call::Call(ChannelSet* channels, Params params, Done done)
    : channels_(channels), params_(std::move(params)), done_(std::move(done)) {}

void Call::Start() { StartAttempt(); }

void Call::StartAttempt() {
  ++attempts_;
  lease_ = channels_->Take();
  auto attempt = std::make_shared<Attempt>(shared_from_this(), params_, channels_->token());
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    backoff_ = nullptr;
    attempt_ = attempt;
    cancelled = cancelled_;
  }
  if (cancelled) attempt->Cancel();
  attempt->Start(lease_.stub());
}

void Call::Cancel() {
  std::shared_ptr<Attempt> attempt;
  std::shared_ptr<grpc::Alarm> backoff;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    attempt = attempt_;
    backoff = backoff_;
  }
  // Not under the lock: gRPC may go on with the call on this thread.
  if (attempt != nullptr) attempt->Cancel();
  if (backoff != nullptr) backoff->Cancel();
}

void Call::OnAttemptDone(const grpc::Status& grpc_status) {
  std::shared_ptr<Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = std::move(attempt_);
    attempt_ = nullptr;
  }
  const std::string request_id = attempt->request_id().value_or(params_.request_id);
  absl::Status status = FromGrpcStatus(grpc_status);
  if (status.ok()) {
    absl::StatusOr<Response> response =
        DecodeResponse(attempt->response(), params_.request.expected(), params_.buffers);
    if (response.ok()) {
      response->request_id = request_id;
      response->attempts = attempts_;
      attempt.reset();
      return Finish(std::move(response));
    }
    status = response.status();
  } else if (const auto delay = RetryDelay(status, *attempt)) {
    attempt.reset();
    return RetryAfter(*delay);
  }
  attempt.reset();
  if (attempts_ > 1) {
    absl::Status counted(status.code(), absl::StrCat(status.message(), " (attempt ", attempts_, ")"));
    status.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& cord) { counted.SetPayload(url, cord); });
    status = std::move(counted);
  }
  SetRequestId(status, request_id);
  Finish(std::move(status));
}

std::optional<absl::Duration> Call::RetryDelay(const absl::Status& status, const Attempt& attempt) {
  if (attempts_ >= params_.retry.attempts_max) return std::nullopt;
  std::optional<absl::Duration> asked = GetRetryDelay(status);
  if (const auto pushback = attempt.pushback()) {
    int64_t ms = 0;
    // As gRPC has it: a negative or unreadable pushback means do not try again.
    if (!absl::SimpleAtoi(*pushback, &ms) || ms < 0) return std::nullopt;
    asked = absl::Milliseconds(ms);
  }
  const bool may_retry = status.code() == absl::StatusCode::kUnavailable ||
                         (status.code() == absl::StatusCode::kResourceExhausted && asked);
  if (!may_retry) return std::nullopt;
  absl::Duration delay = params_.retry.backoff_initial;
  for (int i = 1; i < attempts_; ++i)
    delay = std::min(delay * params_.retry.backoff_factor, params_.retry.backoff_max);
  // Jitter, so that callers refused together do not come back together.
  thread_local absl::BitGen random;
  delay = delay * absl::Uniform(random, 0.8, 1.2);
  if (asked) delay = std::max(delay, *asked);
  // A wait that outlasts the deadline would only hide this error behind another.
  if (absl::Now() + delay >= params_.deadline) return std::nullopt;
  return delay;
}

void Call::RetryAfter(absl::Duration delay) {
  const std::shared_ptr<grpc::Alarm> alarm = SetAlarm(delay, &Call::StartAttempt);
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    backoff_ = alarm;
    cancelled = cancelled_;
  }
  // A call that is cancelled does not wait for its next attempt, which then ends at once.
  if (cancelled) alarm->Cancel();
}

std::shared_ptr<grpc::Alarm> Call::SetAlarm(absl::Duration delay, void (Call::*then)()) {
  // A new one each time: this may run inside the callback of the last.
  auto alarm = std::make_shared<grpc::Alarm>();
  // The alarm keeps its callback after it has run, so the callback gives up its references by itself.
  alarm->Set(absl::ToChronoTime(absl::Now() + delay), [self = shared_from_this(), alarm, then](bool) mutable {
    const std::shared_ptr<grpc::Alarm> held = std::move(alarm);
    const std::shared_ptr<Call> call = std::move(self);
    ((*call).*then)();
  });
  return alarm;
}

void Call::Finish(absl::StatusOr<Response> result) {
  result_ = std::move(result);
  for (int i = 0; i < kMemorySpins && slices_.value() > 0; ++i) std::this_thread::yield();
  FinishWhenMemoryIsFree();
}

void Call::FinishWhenMemoryIsFree() {
  if (slices_.value() > 0) {
    SetAlarm(kMemoryPoll, &Call::FinishWhenMemoryIsFree);
    return;
  }
  lease_ = {};
  Done done = std::move(done_);
  done(*std::move(result_));
}

}  // namespace client
}  // namespace attend
