// gRPC's side of the calls whose code runs at the headers: the asynchronous generic service behind reactions.
//
// gRPC has a generic callback service with the same reactions. It ends every call by handing it to one more
// thread, which costs small calls CPU time; here a call stays on the threads of its completion queue.
//
// Threads are shared out over several queues: at a single one they would hold each other up. All calls are
// told to the first, and live there while its threads are enough; else on all queues in turn. So under little
// load one thread sees to everything, and the other queues have none (pollers.h). The queue of a call is
// chosen some calls before it comes, so this follows the load with a delay. Handlers must not block: a thread
// that is stuck is replaced, but once all of the first queue's are, no call is seen.
#ifndef ATTEND_SERVER_PROCESS_GENERIC_SERVER_H_
#define ATTEND_SERVER_PROCESS_GENERIC_SERVER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/process/pollers.h"

namespace attend::server {

class GenericServer;
struct GenericQueue;

// One call. Belongs to gRPC until its handler's OnDone has returned. StartRead, StartWriteAndFinish, Finish,
// Post and TryCancel may be called from any thread and call no reaction before they return.
class GenericCall {
 public:
  // What is done with a call. Reactions may run at the same time on different threads, but for OnDone,
  // which is the last.
  class Handler {
   public:
    virtual void Start() = 0;  // the headers are there
    virtual void OnReadDone(bool ok) = 0;
    virtual void OnWriteDone(bool) {}
    virtual void OnPosted() {}
    virtual void OnCancel() = 0;  // the caller is gone, or TryCancel; not before Start has returned
    virtual void OnDone() = 0;    // all operations have ended, Finish was one; the handler may delete itself

   protected:
    ~Handler() = default;
  };

  grpc::GenericServerContext& context() { return context_; }
  void StartRead(grpc::ByteBuffer* message);         // one at a time; message outlives it
  void StartWrite(const grpc::ByteBuffer& message);  // of a stream, one at a time
  void Post();                                       // OnPosted on a thread of the call's own queue; once
  // One of these two, exactly once. A read that is pending ends with it.
  void StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status);
  void Finish(const grpc::Status& status);

 private:
  friend class GenericServer;

  // What a completion queue gives back.
  struct Tag {
    GenericCall* call;
    void (GenericCall::*reaction)(bool ok);
  };

  // Waits for a call to come.
  GenericCall(GenericServer* server, GenericQueue* queue);
  ~GenericCall();
  void OnRequest(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnPosted(bool ok);
  void OnFinished(bool ok);
  void OnEnded(bool ok);
  void Unref();
  // The call no longer waits for an answer.
  void Answered();
  // Of the queues that count the call: the first, and its own.
  template <typename Change>
  void Count(Change change);

  GenericServer* const server_;
  GenericQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  Handler* handler_ = nullptr;
  Tag request_tag_, read_tag_, write_tag_, post_tag_, finish_tag_, end_tag_;
  std::optional<grpc::Alarm> post_;
  std::atomic<int> outstanding_{3};  // Start, the final operation, and gRPC's word that the call has ended
  std::atomic<int> cancellation_{0};
  std::atomic<bool> answered_{false};
};

// A completion queue and the threads that see to it. The first one's see to the coming of all calls, which it
// counts therefore, wherever they live.
struct GenericQueue {
  GenericQueue(bool first, int64_t threads) : pollers(first ? 1 : 0, threads) {}

  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  Pollers pollers;
};

class GenericServer {
 public:
  // Makes the handler of a call by its context().method(); null: UNIMPLEMENTED.
  using Factory = std::function<GenericCall::Handler*(GenericCall*)>;

  GenericServer(int64_t threads, Factory factory);
  ~GenericServer();  // calls Shutdown; after the gRPC server is gone

  void Register(grpc::ServerBuilder* builder);
  void Start();     // once the gRPC server runs
  void Shutdown();  // once the gRPC server has been shut down; waits for all calls, ends the threads

  // Threads that wait for events or see to them now, by queue.
  std::vector<int64_t> polling() const;

 private:
  friend class GenericCall;
  GenericQueue& first() { return *queues_.front(); }
  // Where the next call will live.
  GenericQueue* NextQueue();
  void Run(GenericQueue* queue, size_t thread);
  void Look();

  const int64_t thread_count_;
  const Factory factory_;
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<GenericQueue>> queues_;
  std::atomic<uint64_t> turn_{0};
  std::vector<std::thread> threads_;
  std::atomic<int64_t> calls_{0};  // there, and waited for
  absl::Notification ends_;
  std::thread looks_;
  bool shut_down_ = false;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_GENERIC_SERVER_H_
