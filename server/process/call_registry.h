// The calls in flight: counted, bounded, and looked over for time limits.
#ifndef ATTEND_SERVER_PROCESS_CALL_REGISTRY_H_
#define ATTEND_SERVER_PROCESS_CALL_REGISTRY_H_

#include <cstdint>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attend::server {

// Thread-safe.
class CallRegistry {
 public:
  class Member {
   public:
    // Ends what has taken too long. Called every interval under the registry's lock: must not add or
    // remove members, and does not outlast Remove.
    virtual void OnSweep(absl::Time now) = 0;

   protected:
    ~Member() = default;
  };
  using Handle = std::list<Member*>::iterator;

  CallRegistry(int64_t members_max, absl::Duration interval);
  ~CallRegistry();  // no member is left

  // False where members_max are there, or the registry is closed.
  bool Add(Member* member, Handle* handle);
  void Remove(Handle handle);
  // From now on Add refuses.
  void Close();
  bool closed() const;
  int64_t size() const;
  // Waits until no member is left; false if the time is up first.
  bool AwaitEmpty(absl::Duration limit);
  // Waits until Add has refused nobody for `quiet`; at most limit.
  void AwaitQuiet(absl::Duration quiet, absl::Duration limit);

 private:
  void Sweep(absl::Duration interval);

  const int64_t members_max_;
  mutable absl::Mutex mutex_;
  // Condition variables rather than Mutex::Await: its conditions would be evaluated at every unlock, and
  // every call locks this twice.
  absl::CondVar emptied_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar stop_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_refused_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Member*> members_ ABSL_GUARDED_BY(mutex_);
  std::thread sweeper_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_CALL_REGISTRY_H_
