// Callers that load servers through one client, for tests of several servers.
#ifndef ATTEND_TESTS_DEPLOY_CALLERS_H_
#define ATTEND_TESTS_DEPLOY_CALLERS_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "attend/client.h"
#include "tests/integration/server_process.h"

namespace attend::deploy {

// One request: q [1,2,q_tokens,64], k and v [1,2,kv_tokens,64] in fp32. All of v has this value, and so,
// since weights sum to 1, has all of the answer, whatever q and k are: OK, or kDataLoss where it has not.
absl::Status CallOnce(Client& client, int64_t q_tokens, int64_t kv_tokens, float value);

// Threads that call one after the other, until Stop. Thread-safe.
class Callers {
 public:
  Callers(Client* client, int count);
  ~Callers() { Stop(); }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  void Stop();
  int64_t answered() const { return answered_; }
  std::vector<absl::Status> failures() const;

 private:
  void Run(int caller);

  Client* const client_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> answered_{0};
  mutable absl::Mutex mutex_;
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// Attend calls that a server has ended: those that went well, or all. -1 where it does not answer.
int64_t Answered(const integration::ServerProcess& server);
int64_t Ended(const integration::ServerProcess& server);

}  // namespace attend::deploy

#endif  // ATTEND_TESTS_DEPLOY_CALLERS_H_
