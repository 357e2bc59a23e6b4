#include "server/process/generic_server.h"

#include <chrono>
#include <utility>

namespace attend::server {
namespace {

constexpr int64_t kThreadsPerQueue = 4;
// Calls that gRPC may match to a queue before a thread of it has looked; more wait in gRPC.
constexpr int kRequestsPerQueue = 128;

constexpr int kStarted = 1, kCancelled = 2;

}  // namespace

GenericCall::GenericCall(GenericServer* server, grpc::ServerCompletionQueue* queue)
    : server_(server),
      queue_(queue),
      stream_(&context_),
      request_tag_{this, &GenericCall::OnRequest},
      read_tag_{this, &GenericCall::OnRead},
      write_tag_{this, &GenericCall::OnWritten},
      post_tag_{this, &GenericCall::OnPosted},
      finish_tag_{this, &GenericCall::OnFinished},
      end_tag_{this, &GenericCall::OnEnded} {
  server_->calls_.fetch_add(1, std::memory_order_relaxed);
  context_.AsyncNotifyWhenDone(&end_tag_);
  server_->service_.RequestCall(&context_, &stream_, queue_, queue_, &request_tag_);
}

GenericCall::~GenericCall() { server_->calls_.fetch_sub(1, std::memory_order_release); }

void GenericCall::StartRead(grpc::ByteBuffer* message) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  stream_.Read(message, &read_tag_);
}

void GenericCall::StartWrite(const grpc::ByteBuffer& message) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  stream_.Write(message, &write_tag_);
}

void GenericCall::Post() {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  // A time that has passed: the tag goes to the queue at once.
  post_.emplace().Set(queue_, gpr_time_0(GPR_CLOCK_REALTIME), &post_tag_);
}

void GenericCall::StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) {
  stream_.WriteAndFinish(message, grpc::WriteOptions(), status, &finish_tag_);
}

void GenericCall::Finish(const grpc::Status& status) { stream_.Finish(status, &finish_tag_); }

void GenericCall::OnRequest(bool ok) {
  if (!ok) {  // the server shuts down, and no other tag comes
    delete this;
    return;
  }
  new GenericCall(server_, queue_);
  handler_ = server_->factory_(this);
  if (handler_ == nullptr) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "the server has no such method"));
  } else {
    handler_->Start();
    if ((cancellation_.fetch_or(kStarted) & kCancelled) != 0) handler_->OnCancel();
  }
  Unref();
}

void GenericCall::OnRead(bool ok) {
  handler_->OnReadDone(ok);
  Unref();
}

void GenericCall::OnWritten(bool ok) {
  handler_->OnWriteDone(ok);
  Unref();
}

void GenericCall::OnPosted(bool) {
  handler_->OnPosted();
  Unref();
}

void GenericCall::OnFinished(bool) { Unref(); }

void GenericCall::OnEnded(bool) {
  // Whoever of this and OnRequest comes second says it.
  if (context_.IsCancelled() && (cancellation_.fetch_or(kCancelled) & kStarted) != 0) handler_->OnCancel();
  Unref();
}

void GenericCall::Unref() {
  if (outstanding_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (handler_ != nullptr) handler_->OnDone();
  delete this;
}

GenericServer::GenericServer(int64_t threads, Factory factory)
    : thread_count_(threads), factory_(std::move(factory)) {}

GenericServer::~GenericServer() { Shutdown(); }

void GenericServer::Register(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  for (int64_t i = 0; i < thread_count_; i += kThreadsPerQueue)
    queues_.push_back(builder->AddCompletionQueue());
}

void GenericServer::Start() {
  for (const auto& queue : queues_) {
    for (int i = 0; i < kRequestsPerQueue; ++i) new GenericCall(this, queue.get());
  }
  for (int64_t i = 0; i < thread_count_; ++i) {
    grpc::ServerCompletionQueue* const queue = queues_[static_cast<size_t>(i) % queues_.size()].get();
    threads_.emplace_back([this, queue] { Run(queue); });
  }
}

void GenericServer::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  // The gRPC server's shutdown does not wait for calls whose connection is gone, and a queue that is shut
  // down takes no operation of theirs.
  while (calls_.load(std::memory_order_acquire) > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  // A queue that no thread has emptied still has to be.
  if (threads_.empty()) {
    for (const auto& queue : queues_) Run(queue.get());
  }
}

void GenericServer::Run(grpc::ServerCompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  const auto react = [&tag, &ok] {
    const auto* const completed = static_cast<GenericCall::Tag*>(tag);
    (completed->call->*completed->reaction)(ok);
  };
  bool more = queue->Next(&tag, &ok);
  while (more) {
    // What a reaction starts has often ended when it returns: the first of it is this thread's next, and
    // wakes no other.
    more = queue->DoThenAsyncNext(react, &tag, &ok, gpr_inf_future(GPR_CLOCK_REALTIME)) ==
           grpc::CompletionQueue::GOT_EVENT;
  }
}

}  // namespace attend::server
