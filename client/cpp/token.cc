#include "client/cpp/token.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace attend {
inline namespace client {
namespace {

constexpr absl::Duration kReadInterval = absl::Seconds(1);
constexpr size_t kTokenBytesMax = 8192;  // what gRPC's default limit of metadata lets through

absl::Status CheckToken(const std::string& token) {
  const bool sendable =
      std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (!sendable || token.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token must be one word of at most ", kTokenBytesMax, " bytes of printable ASCII"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kTokenBytesMax + 2, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  text.resize(static_cast<size_t>(file.gcount()));
  text = std::string(absl::StripAsciiWhitespace(text));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token"));
  const absl::Status status = CheckToken(text);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::Make(const ClientOptions& options) {
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("token and token_file exclude each other");
  }
  absl::StatusOr<std::string> token = options.token;
  if (!options.token_file.empty()) {
    token = ReadToken(options.token_file);
  } else if (const absl::Status status = CheckToken(options.token); !status.ok()) {
    token = status;
  }
  if (!token.ok()) return token.status();
  return std::unique_ptr<TokenSource>(new TokenSource(options.token_file, *std::move(token)));
}

TokenSource::TokenSource(std::string path, std::string token)
    : path_(std::move(path)), token_(std::move(token)), due_(absl::Now() + kReadInterval) {}

std::string TokenSource::Get() {
  absl::MutexLock lock(&mutex_);
  if (!path_.empty() && absl::Now() >= due_) {
    absl::StatusOr<std::string> token = ReadToken(path_);
    if (token.ok()) token_ = *std::move(token);
    due_ = absl::Now() + kReadInterval;
  }
  return token_;
}

}  // namespace client
}  // namespace attend
