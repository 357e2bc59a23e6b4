// Files that the user names.
#ifndef ATTEND_CLIENT_CLI_FILES_H_
#define ATTEND_CLIENT_CLI_FILES_H_

#include <string>

#include "absl/status/statusor.h"

namespace attend::cli {

// The bytes of a regular file: what is none, such as a pipe or a terminal, may keep a reader waiting, and a
// device may never end. The error begins with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_FILES_H_
