#include "server/process/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/process/small_file.h"

namespace attend::server {
namespace {

struct Free {
  void operator()(X509* x) const { X509_free(x); }
  void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
  void operator()(BIO* x) const { BIO_free(x); }
  void operator()(SSL_CTX* x) const { SSL_CTX_free(x); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// What OpenSSL last complained of. Empties its queue, which others of the thread would read.
std::string Reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Status Wrong(const std::string& path, const std::string& what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

Owned<BIO> Reader(const std::string& pem) {
  return Owned<BIO>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// All certificates of a file, at least one.
absl::StatusOr<std::vector<Owned<X509>>> ParseCertificates(const std::string& path, const std::string& pem) {
  std::vector<Owned<X509>> certificates;
  const Owned<BIO> reader = Reader(pem);
  while (Owned<X509> one{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    certificates.push_back(std::move(one));
  }
  // The end of the file is an error as well.
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
    return Wrong(path, absl::StrCat("a certificate cannot be read: ", Reason()));
  }
  if (certificates.empty()) return Wrong(path, "holds no certificate in PEM");
  ERR_clear_error();
  return certificates;
}

absl::StatusOr<Owned<EVP_PKEY>> ParseKey(const std::string& path, const std::string& pem) {
  // A passphrase is not asked for: the server would wait at its terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) return Wrong(path, "holds no whole private key in PEM without a passphrase");
  return key;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

// Loads them as gRPC will, so that what this takes, gRPC takes.
absl::Status CheckPair(const TlsPaths& paths, const std::vector<Owned<X509>>& chain, EVP_PKEY* key) {
  const Owned<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
  if (SSL_CTX_use_certificate(context.get(), chain[0].get()) != 1) return Wrong(paths.cert, Reason());
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) != 1) return Wrong(paths.cert, Reason());
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key) != 1 || SSL_CTX_check_private_key(context.get()) != 1) {
    return Wrong(paths.key, absl::StrCat("does not fit the certificate in ", paths.cert, ": ", Reason()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths, absl::Time now) {
  TlsFiles files;
  for (const auto& [path, text] : {std::pair(&paths.cert, &files.cert), std::pair(&paths.key, &files.key),
                                   std::pair(&paths.client_ca, &files.client_ca)}) {
    if (path->empty()) continue;
    absl::StatusOr<std::string> read = ReadSmallFile(*path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  const auto chain = ParseCertificates(paths.cert, files.cert);
  if (!chain.ok()) return chain.status();
  const auto key = ParseKey(paths.key, files.key);
  if (!key.ok()) return key.status();
  const absl::Status pair = CheckPair(paths, *chain, key->get());
  if (!pair.ok()) return pair;
  files.expiry = absl::InfiniteFuture();
  for (const Owned<X509>& one : *chain) {
    files.expiry = std::min(files.expiry, ToTime(X509_get0_notAfter(one.get())));
    if (ToTime(X509_get0_notBefore(one.get())) > now) return Wrong(paths.cert, "is not valid yet");
  }
  if (files.expiry <= now) {
    return Wrong(paths.cert, absl::StrCat("has expired, at ", absl::FormatTime(files.expiry)));
  }
  if (!paths.client_ca.empty()) {
    const auto roots = ParseCertificates(paths.client_ca, files.client_ca);
    if (!roots.ok()) return roots.status();
  }
  return files;
}

}  // namespace attend::server
