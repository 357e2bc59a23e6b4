// The bytes of requests that may be on their way into memory at once. A caller asks before it reads; who
// gets no grant waits in line while HTTP/2 flow control holds its bytes back.
#ifndef ATTEND_SERVER_PROCESS_BYTE_BUDGET_H_
#define ATTEND_SERVER_PROCESS_BYTE_BUDGET_H_

#include <cstdint>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attend::server {

// Thread-safe. First come, first served: a small request does not overtake a large one that waits, so
// none starves. (The server keeps a second budget for small ones.)
class ByteBudget {
 public:
  class Waiter {
   public:
    // The bytes asked for are granted. Called at most once for each Acquire that returned false, on the
    // thread of whoever released, without the budget's lock.
    virtual void OnGranted() = 0;

   protected:
    ~Waiter() = default;
  };

  explicit ByteBudget(int64_t capacity) : capacity_(capacity) {}

  // True: granted now. False: waiter is in line and must outlive its grant or removal. bytes is at most
  // the capacity.
  bool Acquire(int64_t bytes, Waiter* waiter);
  // Takes a waiter out of the line. False where it is not in line: granted, or about to be.
  bool Remove(Waiter* waiter);
  // Corrects a grant to the true size, which may exceed the capacity: the bytes have arrived.
  void Adjust(int64_t granted, int64_t actual) { Release(granted - actual); }
  void Release(int64_t bytes);

  int64_t capacity() const { return capacity_; }
  int64_t used() const;
  int64_t waiting() const;

 private:
  struct Entry {
    int64_t bytes;
    Waiter* waiter;
  };

  const int64_t capacity_;
  mutable absl::Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Entry> line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_BYTE_BUDGET_H_
