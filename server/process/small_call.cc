#include "server/process/small_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/error.h"
#include "server/wire/encoder.h"

namespace attend::server {

grpc::ByteBuffer ToByteBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<std::string> ToSmallString(grpc::ByteBuffer* message) {
  if (message->Length() > kSmallRequestMax) {
    return InvalidRequest({{"", absl::StrCat("the request has ", message->Length(),
                                             " bytes; this method takes at most ", kSmallRequestMax)}});
  }
  std::vector<grpc::Slice> slices;
  if (!message->Dump(&slices).ok()) return absl::InternalError("the message cannot be read");
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

SmallCall::SmallCall(GenericCall* call, CallRegistry* registry, absl::Duration receive_timeout,
                     SmallMethod method, SmallEnd end)
    : call_(call),
      registry_(registry),
      started_(absl::Now()),
      due_(started_ + receive_timeout),
      method_(std::move(method)),
      end_(std::move(end)) {}

void SmallCall::Start() {
  registered_ = registry_->Add(this, &registration_);
  if (registered_) {
    call_->StartRead(&message_);
  } else if (TakeReply()) {
    Finish(ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING",
                           "the server is shutting down or has all the calls that it takes"));
  }
}

void SmallCall::OnReadDone(bool ok) {
  if (!TakeReply()) return;
  if (!ok) {
    Finish(absl::CancelledError("the call ended without a request message"));
    return;
  }
  const absl::StatusOr<std::string> request = ToSmallString(&message_);
  const absl::StatusOr<std::string> reply = request.ok() ? method_(*request) : request.status();
  if (reply.ok()) {
    call_->StartWriteAndFinish(ToByteBuffer(*reply), grpc::Status::OK);
  } else {
    Finish(reply.status());
  }
}

void SmallCall::OnSweep(absl::Time now) {
  if (now < due_ || !TakeReply()) return;
  Finish(ErrorWithReason(absl::StatusCode::kDeadlineExceeded, "RECEIVE_TIMEOUT",
                         "the request did not arrive within --receive-timeout"));
}

void SmallCall::OnDone() {
  if (registered_) registry_->Remove(registration_);
  if (end_) end_(code_, absl::Now() - started_);
  delete this;
}

RefusedCall::RefusedCall(GenericCall* call, absl::Status status, SmallEnd end)
    : call_(call), status_(std::move(status)), started_(absl::Now()), end_(std::move(end)) {}

void RefusedCall::Start() { call_->Finish(ToGrpcStatus(status_)); }

void RefusedCall::OnDone() {
  if (end_) end_(status_.code(), absl::Now() - started_);
  delete this;
}

bool SmallCall::TakeReply() {
  absl::MutexLock lock(&mutex_);
  return !std::exchange(replying_, true);
}

void SmallCall::Finish(const absl::Status& status) {
  code_ = status.code();
  call_->Finish(ToGrpcStatus(status));
}

}  // namespace attend::server
