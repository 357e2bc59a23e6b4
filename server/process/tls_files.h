// Certificates and keys as they lie in files, checked before anybody uses them.
#ifndef ATTEND_SERVER_PROCESS_TLS_FILES_H_
#define ATTEND_SERVER_PROCESS_TLS_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace attend::server {

struct TlsPaths {
  std::string cert;       // the server's certificate, then those between it and its root
  std::string key;        // its private key
  std::string client_ca;  // roots of clients' certificates; empty: none
};

// Contents, in PEM.
struct TlsFiles {
  std::string cert, key, client_ca;
  absl::Time expiry;  // of the certificate that expires first of those in cert
};

// Reads the files. InvalidArgument (NotFound for a file that cannot be read) names the file and what is wrong
// with it: no or half a certificate or key, a key of another certificate, one that OpenSSL takes for too
// weak, a certificate that is not valid at the time given. Says nothing of their contents.
absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths, absl::Time now);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_TLS_FILES_H_
