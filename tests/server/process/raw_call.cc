#include "tests/server/process/raw_call.h"

#include <chrono>

#include "gtest/gtest.h"
#include "server/process/small_call.h"

namespace attend::server {
namespace {

// So that a test whose call is never answered fails and does not hang.
grpc::ClientContext* Bounded(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  return context;
}

}  // namespace

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
    : stub_(channel), stream_(stub_.PrepareCall(Bounded(&context_), method, &queue_)) {
  stream_->StartCall(nullptr);
  Step();
}

RawCall::~RawCall() {
  if (finished_) return;
  context_.TryCancel();
  Finish();
}

void RawCall::Write(const std::string& bytes) {
  stream_->Write(ToByteBuffer(bytes), nullptr);
  Step();
}

void RawCall::WritesDone() {
  stream_->WritesDone(nullptr);
  Step();
}

std::optional<std::string> RawCall::Read() {
  grpc::ByteBuffer message;
  stream_->Read(&message, nullptr);
  if (!Step()) return std::nullopt;
  const absl::StatusOr<std::string> bytes = ToSmallString(&message);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

grpc::Status RawCall::Finish() {
  finished_ = true;
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Step();
  return status;
}

bool RawCall::Step() {
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue_.Next(&tag, &ok));
  return ok;
}

}  // namespace attend::server
