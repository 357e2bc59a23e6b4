#include "server/process/generic_server.h"

#include <chrono>
#include <utility>

#include "absl/time/time.h"

namespace attend::server {
namespace {

constexpr int64_t kThreadsPerQueue = 4;
// Calls that gRPC may tell of before a thread has looked; more wait in gRPC.
constexpr int kRequests = 64;

constexpr int kStarted = 1, kCancelled = 2;

gpr_timespec AsDeadline(Pollers::Clock::duration wait) {
  if (wait == Pollers::kForever) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_from_nanos(std::chrono::nanoseconds(wait).count(), GPR_TIMESPAN);
}

}  // namespace

GenericCall::GenericCall(GenericServer* server, GenericQueue* queue)
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
  server_->service_.RequestCall(&context_, &stream_, queue_->queue.get(), server_->first().queue.get(),
                                &request_tag_);
}

GenericCall::~GenericCall() { server_->calls_.fetch_sub(1, std::memory_order_release); }

void GenericCall::StartRead(grpc::ByteBuffer* message) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  stream_.Read(message, &read_tag_);
}

void GenericCall::StartWrite(const grpc::ByteBuffer& message) {
  Answered();
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  stream_.Write(message, &write_tag_);
}

void GenericCall::Post() {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  // A time that has passed: the tag goes to the queue at once.
  post_.emplace().Set(queue_->queue.get(), gpr_time_0(GPR_CLOCK_REALTIME), &post_tag_);
}

void GenericCall::StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) {
  Answered();
  stream_.WriteAndFinish(message, grpc::WriteOptions(), status, &finish_tag_);
}

void GenericCall::Finish(const grpc::Status& status) {
  Answered();
  stream_.Finish(status, &finish_tag_);
}

void GenericCall::Answered() {
  if (!answered_.exchange(true, std::memory_order_relaxed)) Count([](Pollers& p) { p.Answered(); });
}

template <typename Change>
void GenericCall::Count(Change change) {
  change(server_->first().pollers);
  if (queue_ != &server_->first()) change(queue_->pollers);
}

void GenericCall::OnRequest(bool ok) {
  if (!ok) {  // the server shuts down, and no other tag comes
    delete this;
    return;
  }
  new GenericCall(server_, server_->NextQueue());
  Count([now = Pollers::Clock::now()](Pollers& p) { p.Add(now); });
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
  Count([](Pollers& p) { p.Ended(); });
  delete this;
}

GenericServer::GenericServer(int64_t threads, Factory factory)
    : thread_count_(threads), factory_(std::move(factory)) {}

GenericServer::~GenericServer() { Shutdown(); }

void GenericServer::Register(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  const int64_t queues = (thread_count_ + kThreadsPerQueue - 1) / kThreadsPerQueue;
  for (int64_t i = 0; i < queues; ++i) {
    const int64_t threads = (thread_count_ + queues - 1 - i) / queues;
    queues_.push_back(std::make_unique<GenericQueue>(i == 0, threads));
    queues_.back()->queue = builder->AddCompletionQueue(i == 0);  // no other is always polled
  }
}

void GenericServer::Start() {
  for (int i = 0; i < kRequests; ++i) new GenericCall(this, &first());
  for (const auto& queue : queues_) {
    for (int64_t i = 0; i < queue->pollers.threads(); ++i) {
      threads_.emplace_back([this, queue = queue.get(), i] { Run(queue, static_cast<size_t>(i)); });
    }
  }
  looks_ = std::thread([this] { Look(); });
}

std::vector<int64_t> GenericServer::polling() const {
  std::vector<int64_t> counts;
  for (const auto& queue : queues_) counts.push_back(queue->pollers.count());
  return counts;
}

GenericQueue* GenericServer::NextQueue() {
  if (first().pollers.count() < first().pollers.threads()) return &first();
  return queues_[turn_.fetch_add(1, std::memory_order_relaxed) % queues_.size()].get();
}

void GenericServer::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  // The gRPC server's shutdown does not wait for calls whose connection is gone, and a queue that is shut
  // down takes no operation of theirs.
  while (calls_.load(std::memory_order_acquire) > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& queue : queues_) {
    queue->queue->Shutdown();
    queue->pollers.Close();
  }
  for (std::thread& thread : threads_) thread.join();
  ends_.Notify();
  if (looks_.joinable()) looks_.join();
  // A queue that no thread has emptied still has to be.
  if (threads_.empty()) {
    for (const auto& queue : queues_) Run(queue.get(), 0);
  }
}

void GenericServer::Run(GenericQueue* queue, size_t thread) {
  using grpc::CompletionQueue;
  Pollers& pollers = queue->pollers;
  void* tag = nullptr;
  bool ok = false;
  Pollers::Clock::time_point now, reacted;
  const auto react = [&] {
    pollers.Begin(thread, now);
    const auto* const completed = static_cast<GenericCall::Tag*>(tag);
    (completed->call->*completed->reaction)(ok);
    pollers.End(thread);
    reacted = Pollers::Clock::now();
  };
  while (true) {
    pollers.Join();
    auto rested = reacted = Pollers::Clock::now();
    auto next = CompletionQueue::TIMEOUT;
    Pollers::Clock::duration wait;
    do {
      now = Pollers::Clock::now();
      if (now - reacted > Pollers::kRest) rested = now;
      if (now - rested > Pollers::kNoRest) {
        pollers.Help(now);
        rested = now;
      }
      wait = pollers.Wait(now);
      // What a reaction starts has often ended when it returns: the first of it is this thread's next, and
      // wakes no other.
      next = next == CompletionQueue::GOT_EVENT
                 ? queue->queue->DoThenAsyncNext(react, &tag, &ok, AsDeadline(wait))
                 : queue->queue->AsyncNext(&tag, &ok, AsDeadline(wait));
      if (next == CompletionQueue::SHUTDOWN) return;
    } while (next == CompletionQueue::GOT_EVENT || wait != Pollers::kLeave);
    pollers.Leave();
  }
}

void GenericServer::Look() {
  while (!ends_.WaitForNotificationWithTimeout(absl::FromChrono(Pollers::kPatience))) {
    for (const auto& queue : queues_) queue->pollers.Look(Pollers::Clock::now());
  }
}

}  // namespace attend::server
