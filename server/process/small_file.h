// Files that an operator names and that are read whole, once or again and again: certificates, keys, tokens.
#ifndef ATTEND_SERVER_PROCESS_SMALL_FILE_H_
#define ATTEND_SERVER_PROCESS_SMALL_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace attend::server {

// The bytes of a regular file of at most 1 MiB. NotFound where it cannot be read, InvalidArgument where it is
// none; both name the file. Thread-safe.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_SMALL_FILE_H_
