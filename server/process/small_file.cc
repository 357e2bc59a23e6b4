#include "server/process/small_file.h"

#include <sys/stat.h>

#include <cstdint>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

constexpr int64_t kFileBytesMax = int64_t{1} << 20;

}  // namespace

absl::Status CheckRegularFile(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  if (absl::Status regular = CheckRegularFile(path); !regular.ok()) return regular;
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kFileBytesMax) + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kFileBytesMax)
    return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than 1 MiB"));
  return text;
}

}  // namespace attend::server
