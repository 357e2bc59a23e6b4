#include "kernels/cpu/thread_pool.h"

#include "kernels/cpu/cpu_count.h"

namespace attend::cpu {

ThreadPool::ThreadPool(int thread_count) {
  const int threads = thread_count > 0 ? thread_count : UsableCpus();
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { ThreadMain(i); });
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::Work(Job& job, int thread) {
  for (int64_t i = job.next.fetch_add(1); i < job.count; i = job.next.fetch_add(1)) (*job.fn)(i, thread);
}

void ThreadPool::For(int64_t count, const std::function<void(int64_t, int)>& fn) {
  if (count <= 0) return;
  if (count == 1 || threads_.empty()) {  // no need to wake anyone, nor to take turns
    for (int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
  absl::MutexLock turn(&turn_);
  Job job{count, &fn};
  {
    absl::MutexLock lock(&mutex_);
    job_ = &job;
    ++generation_;
    working_ = static_cast<int>(threads_.size());
  }
  Work(job, 0);
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return working_ == 0; };
  mutex_.Await(absl::Condition(&idle));
  job_ = nullptr;
}

void ThreadPool::ThreadMain(int thread) {
  int64_t seen = 0;
  for (;;) {
    Job* job = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto woken = [this, &seen]()
                             ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || generation_ != seen; };
      mutex_.Await(absl::Condition(&woken));
      if (stop_) return;
      seen = generation_;
      job = job_;
    }
    Work(*job, thread);
    absl::MutexLock lock(&mutex_);
    --working_;
  }
}

}  // namespace attend::cpu
