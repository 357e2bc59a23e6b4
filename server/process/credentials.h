// What the options say of TLS and tokens, loaded.
#ifndef ATTEND_SERVER_PROCESS_CREDENTIALS_H_
#define ATTEND_SERVER_PROCESS_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/process/options.h"
#include "server/process/tls_credentials.h"
#include "server/process/tokens.h"

namespace attend::server {

struct Credentials {
  std::unique_ptr<TlsCertificates> tls;  // null: plain text
  std::unique_ptr<Tokens> tokens;        // null: no call needs one
};

// The error names the option and the file.
absl::StatusOr<Credentials> LoadCredentials(const ServerOptions& options);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_CREDENTIALS_H_
