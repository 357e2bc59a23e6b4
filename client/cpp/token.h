// The bearer token of a client.
#ifndef ATTEND_CLIENT_CPP_TOKEN_H_
#define ATTEND_CLIENT_CPP_TOKEN_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "attend/client.h"

namespace attend {
inline namespace client {

// Thread-safe.
class TokenSource {
 public:
  // InvalidArgument where the options hold no token that can be sent, NotFound where its file cannot be read.
  // Neither says anything of the token.
  static absl::StatusOr<std::unique_ptr<TokenSource>> Make(const ClientOptions& options);

  // Empty: none. One from a file is read again, at most once a second; where that fails, the last one stays.
  std::string Get() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TokenSource(std::string path, std::string token);

  const std::string path_;  // empty: the token is fixed
  absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  absl::Time due_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_CPP_TOKEN_H_
