#include "server/process/tls_credentials.h"

#include <grpc/grpc.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/process/listen.h"

namespace attend::server {

// gRPC fetches a certificate and makes a handshake of it without one lock around both, so that two handshakes
// at once may use what one of them frees (grpc/grpc issue 36693). One socket accepts one connection after the
// other: each gets credentials of its own, where gRPC would have all sockets of an address share them.
class TlsCertificates::ServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ServerCredentials(TlsCertificates* owner) : owner_(owner) {}
  // Tokens are checked at a call's headers (authenticate.h), where the call can be counted and logged.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    std::abort();
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    int port = 0;
    for (const std::string& one : ResolveAddress(address)) {
      grpc_server_credentials* const credentials = owner_->NewPort();
      const int bound = grpc_server_add_http2_port(server, WithPort(one, port).c_str(), credentials);
      grpc_server_credentials_release(credentials);
      if (port == 0) port = bound;
    }
    return port;
  }

  TlsCertificates* const owner_;
};

TlsCertificates::TlsCertificates(TlsPaths paths, bool require_client_cert, TlsFiles files)
    : paths_(std::move(paths)),
      client_certificates_(require_client_cert ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                           : paths_.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY),
      files_(std::move(files)) {}

absl::StatusOr<std::unique_ptr<TlsCertificates>> TlsCertificates::Load(TlsPaths paths,
                                                                       bool require_client_cert) {
  absl::StatusOr<TlsFiles> files = ReadTlsFiles(paths, absl::Now());
  if (!files.ok()) return files.status();
  return std::unique_ptr<TlsCertificates>(
      new TlsCertificates(std::move(paths), require_client_cert, *std::move(files)));
}

absl::StatusOr<bool> TlsCertificates::Reload() {
  absl::StatusOr<TlsFiles> files = ReadTlsFiles(paths_, absl::Now());
  if (!files.ok()) return files.status();
  absl::MutexLock lock(&mutex_);
  if (files->cert == files_.cert && files->key == files_.key && files->client_ca == files_.client_ca) {
    return false;
  }
  files_ = *std::move(files);
  ++generation_;
  return true;
}

absl::Time TlsCertificates::expiry() const {
  absl::MutexLock lock(&mutex_);
  return files_.expiry;
}

std::shared_ptr<grpc::ServerCredentials> TlsCertificates::Credentials() {
  return std::make_shared<ServerCredentials>(this);
}

grpc_server_credentials* TlsCertificates::NewPort() {
  absl::MutexLock lock(&mutex_);
  Port& port = ports_.emplace_back(Port{this, 0});
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(client_certificates_, &Fetch, &port));
}

grpc_ssl_certificate_config_reload_status TlsCertificates::Fetch(
    void* port_of, grpc_ssl_server_certificate_config** config) {
  Port* const port = static_cast<Port*>(port_of);
  TlsCertificates& self = *port->owner;
  absl::MutexLock lock(&self.mutex_);
  if (port->generation == self.generation_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {self.files_.key.c_str(), self.files_.cert.c_str()};
  // gRPC insists on roots. Where clients are not asked for certificates, it verifies nothing by them.
  const std::string& roots = self.paths_.client_ca.empty() ? self.files_.cert : self.files_.client_ca;
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  port->generation = self.generation_;
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace attend::server
