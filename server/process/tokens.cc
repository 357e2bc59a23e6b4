#include "server/process/tokens.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/process/small_file.h"

namespace attend::server {
namespace {

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= TokenTable::kNameLengthMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("._-", c); });
}

// RFC 6750's b64token.
bool IsToken(absl::string_view text) {
  return text.size() >= TokenTable::kTokenLengthMin && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(c) || absl::StrContains("-._~+/=", c);
         });
}

// SHA-256 of the parts one after the other.
std::string Sha256(std::initializer_list<absl::string_view> parts) {
  // Fetched once: OpenSSL looks the algorithm up at each use else.
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                                     &EVP_MD_CTX_free);
  bool good = EVP_DigestInit_ex(context.get(), sha256, nullptr) == 1;
  for (const absl::string_view part : parts) {
    good = good && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  if (!good || EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) std::abort();
  return std::string(reinterpret_cast<const char*>(digest.data()), size);
}

absl::StatusOr<TokenTable> ParseFile(const std::string& path, const std::string& text, int64_t tokens_max) {
  absl::StatusOr<TokenTable> table = TokenTable::Parse(text, tokens_max);
  if (!table.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", table.status().message()));
  }
  return table;
}

}  // namespace

TokenTable::TokenTable() {
  if (RAND_bytes(key_.data(), static_cast<int>(key_.size())) != 1) std::abort();
}

std::string TokenTable::Digest(absl::string_view token) const {
  return Sha256({absl::string_view(reinterpret_cast<const char*>(key_.data()), key_.size()), token});
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text, int64_t tokens_max) {
  TokenTable table;
  if (!text.empty() && text.back() != '\n') {
    return absl::InvalidArgumentError("the last line does not end with a newline: is the file whole?");
  }
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (parts.size() != 2 || !IsName(parts[0]) || !IsToken(parts[1])) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number,
                                                     " is no 'name token' with a token of at least ",
                                                     kTokenLengthMin, " of A-Z a-z 0-9 - . _ ~ + / ="));
    }
    if (!table.names_.emplace(table.Digest(parts[1]), parts[0]).second) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " repeats the token of another line"));
    }
    if (table.size() > tokens_max) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", tokens_max, " tokens (--tokens-max)"));
    }
  }
  if (table.size() == 0) return absl::InvalidArgumentError("holds no token");
  return table;
}

std::optional<std::string> TokenTable::Find(absl::string_view token) const {
  const auto found = names_.find(Digest(token));
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

Tokens::Tokens(std::string path, int64_t tokens_max, std::string digest, TokenTable table)
    : path_(std::move(path)), tokens_max_(tokens_max), digest_(std::move(digest)), table_(std::move(table)) {}

absl::StatusOr<std::unique_ptr<Tokens>> Tokens::Load(std::string path, int64_t tokens_max) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<TokenTable> table = ParseFile(path, *text, tokens_max);
  if (!table.ok()) return table.status();
  return std::unique_ptr<Tokens>(new Tokens(std::move(path), tokens_max, Sha256({*text}), *std::move(table)));
}

absl::StatusOr<bool> Tokens::Reload() {
  const absl::StatusOr<std::string> text = ReadSmallFile(path_);
  if (!text.ok()) return text.status();
  std::string digest = Sha256({*text});
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (digest == digest_) return false;
  }
  absl::StatusOr<TokenTable> table = ParseFile(path_, *text, tokens_max_);
  if (!table.ok()) return table.status();
  absl::MutexLock lock(&mutex_);
  digest_ = std::move(digest);
  table_ = *std::move(table);
  return true;
}

std::optional<std::string> Tokens::Find(absl::string_view token) const {
  absl::ReaderMutexLock lock(&mutex_);
  return table_.Find(token);
}

int64_t Tokens::size() const {
  absl::ReaderMutexLock lock(&mutex_);
  return table_.size();
}

}  // namespace attend::server
