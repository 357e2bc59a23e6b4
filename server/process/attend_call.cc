#include "server/process/attend_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/error.h"
#include "server/process/request_id.h"
#include "server/process/tensor_copy.h"
#include "server/wire/encoder.h"

namespace attend::server {
namespace {

constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
// What one thread copies at a time of a large request: large enough that taking it costs nothing.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
// A batch of so many requests is answered by the threads of their queues: to wake one costs about what an
// answer does.
constexpr int64_t kSharedBatch = 4;
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

// A metadata value; empty where there is none.
absl::string_view Metadata(const grpc::ServerContext& context, absl::string_view key) {
  const auto& all = context.client_metadata();
  const auto found = all.find(grpc::string_ref(key.data(), key.size()));
  if (found == all.end()) return "";
  return absl::string_view(found->second.data(), found->second.size());
}

// The address without its port: what one machine's callers share.
std::string PeerHost(const std::string& peer) {
  if (peer.rfind("ipv", 0) != 0) return peer;
  return peer.substr(0, peer.rfind(':'));
}

absl::Status Cancelled() {
  return ErrorWithReason(absl::StatusCode::kCancelled, "CANCELLED", "the caller cancelled the call");
}

CallShape ShapeOf(const Call& call) {
  return {call.dtype, call.layout, call.batch,    call.q_heads,   call.kv_heads,
          call.q_len, call.kv_len, call.head_dim, call.v_head_dim};
}

}  // namespace

AttendCall::AttendCall(const CallServices& services, GenericCall* call, absl::StatusOr<std::string> caller)
    : services_(services),
      call_(call),
      caller_(std::move(caller)),
      started_(absl::Now()),
      phase_start_(started_) {
  if (caller_.ok()) record_.caller = *caller_;
  services_.metrics->OnStarted(Method::kAttend);
  ReadMetadata();
}

void AttendCall::ReadMetadata() {
  grpc::ServerContext& context = call_->context();
  record_.peer = context.peer();
  // An id that the caller set comes back; one of ours does only with an error, since it costs every reply a
  // header that compresses badly.
  const absl::string_view id = Metadata(context, kRequestIdKey);
  if (IsRequestId(id)) {
    record_.request_id = std::string(id);
    context.AddInitialMetadata(std::string(kRequestIdKey), record_.request_id);
  } else {
    record_.request_id = NewRequestId();
    own_request_id_ = true;
  }
  const absl::string_view trace = Metadata(context, kTraceparentKey);
  if (IsTraceparent(trace)) {
    record_.traceparent = std::string(trace);
    context.AddInitialMetadata(std::string(kTraceparentKey), record_.traceparent);
  }
  int64_t bytes = 0;
  if (absl::SimpleAtoi(Metadata(context, kRequestBytesKey), &bytes) && bytes >= 0) announced_bytes_ = bytes;
}

void AttendCall::Start() {
  registered_ = caller_.ok() && services_.registry->Add(this, &registration_);
  absl::Status refused = caller_.status();
  if (!refused.ok()) {
    services_.metrics->OnRejected("unauthenticated");
  } else if (!registered_ && services_.registry->closed()) {
    services_.metrics->OnRejected("draining");
    refused = ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING", "the server is shutting down");
  } else if (!registered_) {
    services_.metrics->OnRejected("calls_full");
    refused =
        Exhausted("CALLS_FULL", "as many calls are in flight as the server takes (--calls-max)", kRetryDelay);
  } else if (announced_bytes_ > services_.limits.request_bytes_max) {
    services_.metrics->OnRejected("request_too_large");
    refused = InvalidRequest({{std::string(kRequestBytesKey),
                               absl::StrCat("the request has ", announced_bytes_, " bytes; the server takes ",
                                            services_.limits.request_bytes_max, " (--request-bytes-max)")}});
  }
  if (!refused.ok()) {
    if (Move(Phase::kWaiting, Phase::kReplying)) Fail(refused);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);  // the sweep over calls reads budget_
    // What an empty request would be granted still stands for a call: 1 KiB.
    granted_bytes_ =
        std::max<int64_t>(1024, announced_bytes_ >= 0 ? announced_bytes_ : services_.unannounced_bytes);
    budget_ = granted_bytes_ <= services_.small_bytes_max ? services_.small_budget : services_.large_budget;
  }
  if (budget_->Acquire(granted_bytes_, this)) OnGranted();
}

void AttendCall::OnGranted() {
  // No other owner can be: who leaves kWaiting otherwise has taken this call out of the line first.
  if (Move(Phase::kWaiting, Phase::kReading)) call_->StartRead(&message_);
}

void AttendCall::OnReadDone(bool ok) {
  // A time limit may have answered already.
  if (!Move(Phase::kReading, ok ? Phase::kDecoding : Phase::kReplying)) return;
  if (!ok) {
    // Where the caller is gone, or gRPC itself gave the message up (for its size, or for --wire-bytes-max),
    // it has ended the call, and this status goes nowhere.
    incomplete_ = true;
    record_.receive_ns = absl::ToInt64Nanoseconds(absl::Now() - started_);
    bool cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      cancelled = cancelled_;
    }
    Fail(cancelled ? Cancelled() : InvalidRequest({{"", "the call ended without a request message"}}));
    return;
  }
  const auto bytes = static_cast<int64_t>(message_.Length());
  record_.request_bytes = bytes;
  budget_->Adjust(granted_bytes_, bytes);
  granted_bytes_ = bytes;
  if (bytes <= services_.wire_inline_bytes) {
    Process();
  } else {
    services_.wire_threads->Post([this] { Process(); });
  }
}

struct AttendCall::Arrival {
  Arrival(AttendCall* call, grpc::ByteBuffer* message, const DecodeLimits& limits)
      : call(call), decoder(message, limits) {}

  AttendCall* const call;
  AttendDecoder decoder;
  std::unique_ptr<Admission> admission;  // outlives the blocks that it counts
  std::unique_ptr<Job> job;
  std::optional<TensorCopy> copy;  // of a request that is not copied in one go
};

void AttendCall::Process() {
  const auto arrival = std::make_shared<Arrival>(this, &message_, services_.limits);
  absl::Status status = Prepare(arrival.get());
  if (!status.ok() || !arrival->copy) return EndArrival(arrival.get(), status);
  // Whoever has nothing to do helps with a large request. A helper that comes too late finds nothing left,
  // and touches nothing but the arrival.
  const int64_t worth = arrival->decoder.input_bytes() / kPieceBytes;
  for (int64_t i = 1; i < std::min(worth, services_.wire_threads->size()); ++i) {
    services_.wire_threads->Post([arrival] { CopyPieces(arrival); });
  }
  CopyPieces(arrival);
}

void AttendCall::CopyPieces(const std::shared_ptr<Arrival>& arrival) {
  Arrival& a = *arrival;
  if (!a.copy->Help()) return;
  const absl::Status status = a.decoder.CheckTensors(a.job->tensors);
  if (!status.ok()) a.call->services_.metrics->OnRejected("invalid_request");
  a.call->EndArrival(&a, status);
}

void AttendCall::EndArrival(Arrival* arrival, absl::Status status) {
  ReleaseGrant();
  const absl::Time now = absl::Now();
  record_.receive_ns = absl::ToInt64Nanoseconds(now - started_);
  // Whatever the answer, the arrival is done with: late helpers keep no more than its shell.
  std::unique_ptr<Admission> admission = std::move(arrival->admission);
  std::unique_ptr<Job> job = std::move(arrival->job);
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok() && cancelled_) status = Cancelled();
    phase_ = status.ok() ? Phase::kRunning : Phase::kReplying;
    phase_start_ = now;
    if (status.ok()) admission_id_ = admission->id();
  }
  if (!status.ok()) {
    job.reset();
    admission.reset();
    Fail(status);
    return;
  }
  services_.scheduler->Submit(std::move(job), std::move(admission));
}

absl::Status AttendCall::Prepare(Arrival* arrival) {
  if (announced_bytes_ >= 0 && record_.request_bytes > announced_bytes_) {
    services_.metrics->OnRejected("invalid_request");
    return InvalidRequest({{std::string(kRequestBytesKey),
                            absl::StrCat("announced ", announced_bytes_, " bytes, but the request has ",
                                         record_.request_bytes)}});
  }
  AttendDecoder& decoder = arrival->decoder;
  const absl::Status specs = decoder.ReadSpecs();
  if (!specs.ok()) {
    services_.metrics->OnRejected("invalid_request");
    return specs;
  }
  const Call& call = decoder.call();
  record_.shape = ShapeOf(call);
  record_.kernel = ResolveKernel(call.kernel, call.return_weights);
  const int64_t output_bytes = OutputBytes(call);
  const Caller caller = {record_.caller.empty() ? PeerHost(record_.peer) : record_.caller,
                         absl::FromChrono(call_->context().deadline())};
  auto admitted = services_.scheduler->Admit(call, decoder.input_bytes() + output_bytes, caller);
  if (!admitted.ok()) return admitted.status();
  arrival->admission = *std::move(admitted);

  arrival->job = std::make_unique<Job>();
  Job& j = *arrival->job;
  j.call = call;
  if (absl::Status status = AllocateTensors(decoder.input_bytes(), output_bytes, &j); !status.ok()) {
    services_.metrics->OnRejected(absl::AsciiStrToLower(GetReason(status)));
    return status;
  }
  j.deadline = caller.deadline;
  j.fair_key = caller.fair_key;
  j.request_id = record_.request_id;
  j.done = [this](std::unique_ptr<Job> done, const absl::Status& result) {
    OnJobDone(std::move(done), result);
  };
  if (record_.request_bytes <= services_.wire_inline_bytes) {
    absl::Status read = decoder.ReadTensors(j.inputs, &j.tensors);
    if (!read.ok()) services_.metrics->OnRejected("invalid_request");
    return read;
  }
  auto pieces = decoder.CutTensors(j.inputs, &j.tensors, kPieceBytes);
  if (!pieces.ok()) return pieces.status();
  if (pieces->empty()) return absl::OkStatus();
  j.staging = services_.scheduler->Stage(*arrival->admission,
                                         {j.inputs.data(), static_cast<size_t>(j.inputs.size())});
  arrival->copy.emplace(*std::move(pieces), j.staging.get());
  return absl::OkStatus();
}

absl::Status AttendCall::AllocateTensors(int64_t input_bytes, int64_t output_bytes, Job* job) {
  // A small request has one block: another trip to the pool would cost more than inputs that stay until the
  // reply is sent.
  const bool one_block = record_.request_bytes <= services_.wire_inline_bytes;
  const int64_t ahead = one_block ? input_bytes : 0;  // a multiple of the alignment
  auto outputs = services_.pool->Allocate(ahead + output_bytes);
  if (!outputs.ok()) return outputs.status();
  job->outputs = *std::move(outputs);
  if (one_block) {
    job->inputs = HostBlock(nullptr, job->outputs.data(), input_bytes);
  } else {
    auto inputs = services_.pool->Allocate(input_bytes);
    if (!inputs.ok()) return inputs.status();
    job->inputs = *std::move(inputs);
  }
  PlaceOutputs(job->call, job->outputs.data() + ahead, &job->tensors);
  return absl::OkStatus();
}

void AttendCall::OnJobDone(std::unique_ptr<Job> job, const absl::Status& status) {
  Move(Phase::kRunning, Phase::kReplying);  // nobody else moves a running call
  job_ = std::move(job);
  job_status_ = status;
  // One thread ends a device's batches; the answers of a large one would hold up the next.
  if (job_->report.batch_requests >= kSharedBatch) {
    call_->Post();
  } else {
    Reply();
  }
}

void AttendCall::OnPosted() { Reply(); }

void AttendCall::Reply() {
  const absl::Status status = std::move(job_status_);
  job_->inputs = HostBlock();
  if (!status.ok()) {
    Fail(status);
    return;
  }
  const JobReport& report = job_->report;
  record_.ran = true;
  record_.kernel = report.kernel;
  record_.device = report.device;
  record_.batch_requests = report.batch_requests;
  record_.queue_ns = report.queue_ns;
  record_.copy_in_ns = report.copy_in_ns;
  record_.kernel_ns = report.kernel_ns;
  record_.copy_out_ns = report.copy_out_ns;
  Send(*job_);
}

void AttendCall::Send(Job& job) {
  reply_ = EncodeResponse(job);
  record_.response_bytes = static_cast<int64_t>(reply_.Length());
  call_->StartWriteAndFinish(reply_, grpc::Status::OK);
}

void AttendCall::Fail(const absl::Status& status) {
  record_.code = status.code();
  record_.message = std::string(status.message());
  record_.reason = GetReason(status);
  if (const auto delay = GetRetryDelay(status)) {
    call_->context().AddTrailingMetadata(kPushbackKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  if (own_request_id_) call_->context().AddInitialMetadata(std::string(kRequestIdKey), record_.request_id);
  call_->Finish(ToGrpcStatus(status));
}

void AttendCall::OnCancel() {
  std::optional<uint64_t> running;
  bool waiting = false;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    waiting = phase_ == Phase::kWaiting;
    if (phase_ == Phase::kRunning) running = admission_id_;
  }
  if (running) services_.scheduler->Cancel(*running);
  if (waiting && budget_->Remove(this)) {
    granted_bytes_ = 0;
    if (Move(Phase::kWaiting, Phase::kReplying)) Fail(Cancelled());
  }
}

void AttendCall::OnSweep(absl::Time now) {
  Phase phase;
  absl::Duration age;
  {
    absl::MutexLock lock(&mutex_);
    phase = phase_;
    age = now - phase_start_;
    if (phase == Phase::kReplying && age > services_.send_timeout && !send_expired_) {
      send_expired_ = true;
      services_.metrics->OnTimeout("send");
      call_->context().TryCancel();
    }
  }
  if (phase == Phase::kWaiting && age > services_.grant_timeout && budget_->Remove(this)) {
    granted_bytes_ = 0;
    if (!Move(Phase::kWaiting, Phase::kReplying)) return;
    services_.metrics->OnTimeout("grant");
    services_.metrics->OnRejected("receive_budget");
    Fail(Exhausted("RECEIVE_BUDGET", "no memory to receive the request became free within --grant-timeout",
                   kRetryDelay));
  } else if (phase == Phase::kReading && age > services_.receive_timeout &&
             Move(Phase::kReading, Phase::kReplying)) {
    // The read is still pending; Finish ends it.
    services_.metrics->OnTimeout("receive");
    record_.receive_ns = absl::ToInt64Nanoseconds(now - started_);
    Fail(ErrorWithReason(absl::StatusCode::kDeadlineExceeded, "RECEIVE_TIMEOUT",
                         "the request did not arrive within --receive-timeout"));
  }
}

bool AttendCall::Move(Phase from, Phase to) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  if (phase_ != from) return false;
  phase_ = to;
  phase_start_ = now;
  return true;
}

void AttendCall::ReleaseGrant() {
  if (granted_bytes_ == 0) return;
  budget_->Release(std::exchange(granted_bytes_, 0));
}

void AttendCall::OnDone() {
  const absl::Time now = absl::Now();
  if (registered_) services_.registry->Remove(registration_);
  ReleaseGrant();
  job_.reset();
  {
    absl::MutexLock lock(&mutex_);
    record_.reply_ns = absl::ToInt64Nanoseconds(now - phase_start_);
    if (record_.code == absl::StatusCode::kOk && (cancelled_ || send_expired_)) {
      record_.code = send_expired_ ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled;
    }
    if (incomplete_) {
      services_.metrics->OnRejected(cancelled_ ? "incomplete" : "invalid_request");
      if (cancelled_) {
        record_.code = absl::StatusCode::kCancelled;
        record_.reason = "INCOMPLETE";
        record_.message = "the call ended before its message had arrived";
      }
    }
  }
  record_.total_ns = absl::ToInt64Nanoseconds(now - started_);
  services_.metrics->OnHandled(Method::kAttend, record_);
  services_.log->Write(record_, now);
  delete this;
}

}  // namespace attend::server
