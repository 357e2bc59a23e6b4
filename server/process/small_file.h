// Files that an operator names: options, and what is read whole, once or again and again: certificates, keys,
// tokens.
#ifndef ATTEND_SERVER_PROCESS_SMALL_FILE_H_
#define ATTEND_SERVER_PROCESS_SMALL_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attend::server {

// InvalidArgument where there is something that is no regular file: opening a named pipe waits for who writes
// to it, a device need not end, and neither a start nor the thread that reloads may wait. OK where nothing is
// there. Thread-safe.
absl::Status CheckRegularFile(const std::string& path);

// The bytes of a regular file of at most 1 MiB. NotFound where it cannot be read, InvalidArgument where it is
// none; both name the file. Thread-safe.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_SMALL_FILE_H_
