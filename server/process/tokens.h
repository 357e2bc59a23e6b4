// Bearer tokens, each with the name of who holds it, from a file that may be replaced while the server runs.
//
//   # one caller a line; a name may have several tokens, so that one can be exchanged for the next
//   alice  3f8a1c...
//   batch-jobs  9d02e7...
#ifndef ATTEND_SERVER_PROCESS_TOKENS_H_
#define ATTEND_SERVER_PROCESS_TOKENS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace attend::server {

// The tokens of one reading of the file. Keeps digests under a key of its own, random in each process and
// each reading: how long a search takes tells nothing of any token.
class TokenTable {
 public:
  static constexpr size_t kTokenLengthMin = 16;
  static constexpr size_t kNameLengthMax = 64;

  // A line is "name token" with blanks between, empty, or a comment from #. Names are 1 to 64 of
  // A-Z a-z 0-9 . _ -, tokens at least 16 of A-Z a-z 0-9 . _ ~ + / = -. The last line ends with a newline, or
  // the file is taken for half-written. InvalidArgument names the line, never what stands in it.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text, int64_t tokens_max);

  // The name of who holds the token.
  std::optional<std::string> Find(absl::string_view token) const;
  int64_t size() const { return static_cast<int64_t>(names_.size()); }

 private:
  TokenTable();
  std::string Digest(absl::string_view token) const;

  std::array<unsigned char, 32> key_;
  absl::flat_hash_map<std::string, std::string> names_;  // by digest
};

// Thread-safe.
class Tokens {
 public:
  static absl::StatusOr<std::unique_ptr<Tokens>> Load(std::string path, int64_t tokens_max);

  // As TlsCertificates::Reload. A file without a token is an error: it may be about to be written.
  absl::StatusOr<bool> Reload();
  std::optional<std::string> Find(absl::string_view token) const;
  int64_t size() const;

 private:
  Tokens(std::string path, int64_t tokens_max, std::string digest, TokenTable table);

  const std::string path_;
  const int64_t tokens_max_;
  mutable absl::Mutex mutex_;
  std::string digest_ ABSL_GUARDED_BY(mutex_);  // of the file, to see that it has changed
  TokenTable table_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_TOKENS_H_
