// A fixed set of threads behind Parallel, which any number of callers share.
#ifndef ATTEND_KERNELS_CPU_THREAD_POOL_H_
#define ATTEND_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/cpu_attention.h"

namespace attend::cpu {

// For may be called by several threads at once: each caller works on its own loop as thread 0, and the
// workers turn from loop to loop, one index at a time, so that a short loop does not wait for a long one.
// Indices of a loop are handed out in order. Idle threads sleep.
class ThreadPool : public Parallel {
 public:
  // thread_count threads, one caller among them; 0 or less stands for UsableCpus().
  explicit ThreadPool(int thread_count = 0);
  ~ThreadPool() override;  // no For is running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

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
  std::deque<Loop*> loops_ ABSL_GUARDED_BY(mutex_);  // with indices left; at most one per caller
  std::atomic<int> loop_count_{0};                   // loops_.size()
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_THREAD_POOL_H_
