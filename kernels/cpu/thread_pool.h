// A fixed set of threads behind Parallel.
#ifndef ATTEND_KERNELS_CPU_THREAD_POOL_H_
#define ATTEND_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/cpu_attention.h"

namespace attend::cpu {

// For() hands out indices one by one, in order, to whichever thread is free; the caller is thread 0 and
// works too. Thread-safe: calls of For from several threads take turns. fn must not call For of the same
// pool.
class ThreadPool : public Parallel {
 public:
  // thread_count threads, the caller's among them; 0 stands for UsableCpus().
  explicit ThreadPool(int thread_count = 0);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const override { return static_cast<int>(threads_.size()) + 1; }
  void For(int64_t count, const std::function<void(int64_t index, int thread)>& fn) override;

 private:
  struct Job {
    int64_t count;
    const std::function<void(int64_t, int)>* fn;
    std::atomic<int64_t> next{0};
  };
  static void Work(Job& job, int thread);
  void ThreadMain(int thread);

  absl::Mutex turn_;  // held by the caller of For
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(turn_);
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int working_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_THREAD_POOL_H_
