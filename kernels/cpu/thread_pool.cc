#include "kernels/cpu/thread_pool.h"

#include "kernels/cpu/cpu_count.h"

namespace attend::cpu {

ThreadPool::ThreadPool(int thread_count) : thread_count_(thread_count > 0 ? thread_count : UsableCpus()) {
  for (int i = 1; i < thread_count_; ++i) threads_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    wake_.SignalAll();
  }
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::For(int64_t count, const std::function<void(int64_t, int)>& fn) {
  if (count <= 1 || threads_.empty()) {
    for (int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
  Loop loop;
  loop.fn = &fn;
  loop.count = count;
  {
    absl::MutexLock lock(&mutex_);
    loops_.push_back(&loop);
    loop_count_.store(static_cast<int>(loops_.size()), std::memory_order_relaxed);
    if (count > static_cast<int64_t>(threads_.size())) {
      wake_.SignalAll();
    } else {
      for (int64_t i = 1; i < count; ++i) wake_.Signal();
    }
  }
  Turn(&loop, 0, false);
  absl::MutexLock lock(&mutex_);
  std::erase(loops_, &loop);
  loop_count_.store(static_cast<int>(loops_.size()), std::memory_order_relaxed);
  while (loop.workers > 0) loop.idle.Wait(&mutex_);
}

void ThreadPool::Turn(Loop* loop, int thread, bool worker) {
  for (;;) {
    const int64_t i = loop->next.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop->count) return;
    (*loop->fn)(i, thread);
    if (worker && loop_count_.load(std::memory_order_relaxed) > 1) return;
  }
}

void ThreadPool::Work(int thread) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    while (!stop_ && loops_.empty()) wake_.Wait(&mutex_);
    if (stop_) return;
    Loop* const loop = loops_.front();
    loops_.pop_front();
    if (loop->next.load(std::memory_order_relaxed) >= loop->count) {
      loop_count_.store(static_cast<int>(loops_.size()), std::memory_order_relaxed);
      continue;  // its caller takes care of the rest
    }
    loops_.push_back(loop);  // behind the others: next turn is theirs
    ++loop->workers;
    mutex_.Unlock();
    Turn(loop, thread, true);
    mutex_.Lock();
    if (--loop->workers == 0) loop->idle.Signal();
  }
}

}  // namespace attend::cpu
