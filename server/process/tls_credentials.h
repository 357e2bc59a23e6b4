// TLS for gRPC's listening ports, with certificates that may be replaced while they listen.
//
//   files ──► Reload, checks ──► Certificates in force ──► Fetch, at each handshake ──► gRPC
//
// Connections that are open keep what they were made with. gRPC's own watcher of files (TlsServerCredentials
// with FileWatcherCertificateProvider, in 1.51) takes a key of another certificate, or half a file, and then
// has no certificate at all; so files are read and checked here.
#ifndef ATTEND_SERVER_PROCESS_TLS_CREDENTIALS_H_
#define ATTEND_SERVER_PROCESS_TLS_CREDENTIALS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/process/tls_files.h"

namespace attend::server {

// Thread-safe. Outlives the gRPC server that uses its credentials.
class TlsCertificates {
 public:
  // require_client_cert needs client_ca: with client_ca alone clients may show a certificate, and one that
  // does not verify ends the handshake.
  static absl::StatusOr<std::unique_ptr<TlsCertificates>> Load(TlsPaths paths, bool require_client_cert);

  // Takes what the files hold now, for handshakes to come. True where it is something else than before. An
  // error leaves things as they were.
  absl::StatusOr<bool> Reload();
  // When the certificate in force expires.
  absl::Time expiry() const;
  // For any number of listening addresses.
  std::shared_ptr<grpc::ServerCredentials> Credentials();

 private:
  // One listening socket: what gRPC has fetched for it.
  struct Port {
    TlsCertificates* owner;
    int64_t generation;
  };
  class ServerCredentials;

  TlsCertificates(TlsPaths paths, bool require_client_cert, TlsFiles files);
  static grpc_ssl_certificate_config_reload_status Fetch(void* port,
                                                         grpc_ssl_server_certificate_config** config);
  // The credentials of one more socket. The caller releases them.
  grpc_server_credentials* NewPort();

  const TlsPaths paths_;
  const grpc_ssl_client_certificate_request_type client_certificates_;
  mutable absl::Mutex mutex_;
  TlsFiles files_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 1;
  std::list<Port> ports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_TLS_CREDENTIALS_H_
