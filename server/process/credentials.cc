#include "server/process/credentials.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attend::server {

absl::StatusOr<Credentials> LoadCredentials(const ServerOptions& options) {
  Credentials credentials;
  if (!options.tls_cert.empty()) {
    auto tls = TlsCertificates::Load({options.tls_cert, options.tls_key, options.tls_client_ca},
                                     options.tls_require_client_cert);
    if (!tls.ok()) return absl::InvalidArgumentError(absl::StrCat("TLS: ", tls.status().message()));
    credentials.tls = *std::move(tls);
  }
  if (!options.tokens_file.empty()) {
    auto tokens = Tokens::Load(options.tokens_file, options.tokens_max);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--tokens-file: ", tokens.status().message()));
    }
    credentials.tokens = *std::move(tokens);
  }
  return credentials;
}

}  // namespace attend::server
