// Tells ThreadSanitizer what Abseil's locks order. The distribution's Abseil and gRPC are not instrumented:
// without this every access that a lock guards would be reported. Programs built with the tsan preset link
// this file, whose definitions take the place of Abseil's (gRPC's own calls reach them too) and pass each
// call on to the next definition, Abseil's, with the order that it makes said aloud.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
// What gRPC does by itself (its allocations, its copies) is ordered by atomics that cannot be seen here.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
}

namespace {

// The definition that comes after ours, by our own mangled name: it holds Abseil's inline namespace, which
// differs between distributions.
template <typename Function>
Function Next(void* ours) {
  Dl_info info;
  void* next =
      dladdr(ours, &info) != 0 && info.dli_sname != nullptr ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  if (next == nullptr) {
    std::fputs("absl_tsan: no Abseil definition to pass on to\n", stderr);
    std::abort();
  }
  return reinterpret_cast<Function>(next);
}

}  // namespace

// Calls Abseil's definition of the member function that this stands in; result is what it returns.
#define ATTEND_PASS_ON(Result, Class, Member, Signature, ...)                           \
  using Function = Result(*) Signature;                                                 \
  static const Function next = Next<Function>(reinterpret_cast<void*>(&Class::Member)); \
  return next(__VA_ARGS__)

#pragma GCC diagnostic ignored "-Wpmf-conversions"

namespace absl {
ABSL_NAMESPACE_BEGIN

namespace {

// A condition is evaluated under the lock, by whichever thread holds it, inside Abseil.
struct Ordered {
  Mutex* mutex;
  const Condition* condition;
};

bool Eval(Ordered* ordered) {
  __tsan_acquire(ordered->mutex);
  const bool holds = ordered->condition->Eval();
  __tsan_release(ordered->mutex);
  return holds;
}

// Acquires when the call that it surrounds has returned.
class Acquire {
 public:
  explicit Acquire(void* address) : address_(address) {}
  ~Acquire() { __tsan_acquire(address_); }

 private:
  void* const address_;
};

}  // namespace

void Mutex::Lock() {
  Acquire acquire(this);
  ATTEND_PASS_ON(void, Mutex, Lock, (Mutex*), this);
}

void Mutex::Unlock() {
  __tsan_release(this);
  ATTEND_PASS_ON(void, Mutex, Unlock, (Mutex*), this);
}

bool Mutex::TryLock() {
  Acquire acquire(this);
  ATTEND_PASS_ON(bool, Mutex, TryLock, (Mutex*), this);
}

void Mutex::ReaderLock() {
  Acquire acquire(this);
  ATTEND_PASS_ON(void, Mutex, ReaderLock, (Mutex*), this);
}

void Mutex::ReaderUnlock() {
  __tsan_release(this);
  ATTEND_PASS_ON(void, Mutex, ReaderUnlock, (Mutex*), this);
}

void Mutex::Await(const Condition& condition) {
  __tsan_release(this);
  Acquire acquire(this);
  Ordered ordered{this, &condition};
  ATTEND_PASS_ON(void, Mutex, Await, (Mutex*, const Condition&), this, Condition(&Eval, &ordered));
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  __tsan_release(this);
  Acquire acquire(this);
  Ordered ordered{this, &condition};
  ATTEND_PASS_ON(bool, Mutex, AwaitWithTimeout, (Mutex*, const Condition&, Duration), this,
                 Condition(&Eval, &ordered), timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  __tsan_release(this);
  Acquire acquire(this);
  Ordered ordered{this, &condition};
  ATTEND_PASS_ON(bool, Mutex, AwaitWithDeadline, (Mutex*, const Condition&, Time), this,
                 Condition(&Eval, &ordered), deadline);
}

void CondVar::Wait(Mutex* mutex) {
  __tsan_release(mutex);
  Acquire acquire(mutex);
  ATTEND_PASS_ON(void, CondVar, Wait, (CondVar*, Mutex*), this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  __tsan_release(mutex);
  Acquire acquire(mutex);
  ATTEND_PASS_ON(bool, CondVar, WaitWithTimeout, (CondVar*, Mutex*, Duration), this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  __tsan_release(mutex);
  Acquire acquire(mutex);
  ATTEND_PASS_ON(bool, CondVar, WaitWithDeadline, (CondVar*, Mutex*, Time), this, mutex, deadline);
}

void Notification::Notify() {
  __tsan_release(this);
  ATTEND_PASS_ON(void, Notification, Notify, (Notification*), this);
}

void Notification::WaitForNotification() const {
  auto* self = const_cast<Notification*>(this);
  Acquire acquire(self);
  ATTEND_PASS_ON(void, Notification, WaitForNotification, (const Notification*), self);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  auto* self = const_cast<Notification*>(this);
  Acquire acquire(self);
  ATTEND_PASS_ON(bool, Notification, WaitForNotificationWithTimeout, (const Notification*, Duration), self,
                 timeout);
}

bool BlockingCounter::DecrementCount() {
  __tsan_release(this);
  ATTEND_PASS_ON(bool, BlockingCounter, DecrementCount, (BlockingCounter*), this);
}

void BlockingCounter::Wait() {
  Acquire acquire(this);
  ATTEND_PASS_ON(void, BlockingCounter, Wait, (BlockingCounter*), this);
}

ABSL_NAMESPACE_END
}  // namespace absl
