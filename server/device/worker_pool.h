// The threads of the CPU device, shared by all its slots.
#ifndef ATTEND_SERVER_DEVICE_WORKER_POOL_H_
#define ATTEND_SERVER_DEVICE_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/cpu_attention.h"

namespace attend::server {

// For may be called by several threads at once: each caller works on its own loop as thread 0, and the
// workers turn from loop to loop, one index at a time, so that a short loop does not wait for a long one.
// Idle threads sleep.
class WorkerPool : public cpu::Parallel {
 public:
  explicit WorkerPool(int threads);  // 1 or more, callers included: starts threads - 1
  ~WorkerPool() override;            // no For is running
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int thread_count() const override { return thread_count_; }
  void For(int64_t count, const std::function<void(int64_t index, int thread)>& fn) override;

 private:
  // One For. Lives on its caller's stack.
  struct Loop {
    const std::function<void(int64_t, int)>* fn;
    int64_t count;
    std::atomic<int64_t> next{0};
    int workers = 0;  // inside fn or about to be; guarded by the pool's mutex
    absl::CondVar idle;
  };

  void Work(int thread);
  // Takes indices of the loop until none is left, or, for workers, until other loops want their turn.
  void Turn(Loop* loop, int thread, bool worker);

  const int thread_count_;
  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::deque<Loop*> loops_ ABSL_GUARDED_BY(mutex_);  // with indices left; at most one per slot
  std::atomic<int> loop_count_{0};                   // loops_.size()
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_WORKER_POOL_H_
