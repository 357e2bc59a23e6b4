#include "client/cli/files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace attend::cli {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(EISDIR)));
  }
  if (!S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be read: is no regular file"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) return absl::InternalError(absl::StrCat(path, ": cannot be read"));
  return bytes;
}

}  // namespace attend::cli
