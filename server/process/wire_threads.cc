#include "server/process/wire_threads.h"

#include <utility>

namespace attend::server {

WireThreads::WireThreads(int64_t threads) {
  for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WireThreads::~WireThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WireThreads::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void WireThreads::PostShort(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  short_tasks_.push_back(std::move(task));
}

void WireThreads::Run() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !short_tasks_.empty() || !tasks_.empty();
  };
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      std::deque<std::function<void()>>& from = short_tasks_.empty() ? tasks_ : short_tasks_;
      if (from.empty()) return;
      task = std::move(from.front());
      from.pop_front();
    }
    task();
  }
}

}  // namespace attend::server
