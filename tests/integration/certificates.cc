#include "tests/integration/certificates.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

namespace attend::integration {
namespace {

struct Free {
  void operator()(X509* x) const { X509_free(x); }
  void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
  void operator()(BIO* x) const { BIO_free(x); }
  void operator()(BIGNUM* x) const { BN_free(x); }
  void operator()(SSL_CTX* x) const { SSL_CTX_free(x); }
  void operator()(SSL* x) const { SSL_free(x); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// Ends the test program: there is nothing to test without certificates.
void Require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "certificates: %s failed\n", what);
  std::abort();
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

Owned<X509> ParseCertificate(const std::string& pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Owned<X509>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

Owned<EVP_PKEY> ParseKey(const std::string& pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Owned<EVP_PKEY>(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

void AddExtension(X509* certificate, int id, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str());
  Require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

// Signed by issuer, or by itself where that is null.
Identity Make(const std::string& name, const Wish& wish, const Identity* issuer) {
  const Owned<EVP_PKEY> key(wish.rsa_bits > 0 ? EVP_RSA_gen(static_cast<unsigned>(wish.rsa_bits))
                                              : EVP_EC_gen("P-256"));
  Require(key != nullptr, "making a key");
  const Owned<X509> certificate(X509_new());
  X509* const x = certificate.get();
  const Owned<BIGNUM> serial(BN_new());
  Require(BN_rand(serial.get(), 64, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1, "BN_rand");
  BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(x));
  X509_set_version(x, 2);
  X509_gmtime_adj(X509_getm_notBefore(x), absl::ToInt64Seconds(wish.from));
  X509_gmtime_adj(X509_getm_notAfter(x), absl::ToInt64Seconds(wish.until));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(x, key.get());
  Owned<EVP_PKEY> signer;
  if (issuer == nullptr) {
    X509_set_issuer_name(x, X509_get_subject_name(x));
    AddExtension(x, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    X509_set_issuer_name(x, X509_get_subject_name(ParseCertificate(issuer->cert).get()));
    AddExtension(x, NID_subject_alt_name, wish.names);
    signer = ParseKey(issuer->key);
  }
  Require(X509_sign(x, signer != nullptr ? signer.get() : key.get(), EVP_sha256()) > 0, "signing");
  const Owned<BIO> cert_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(cert_text.get(), x);
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {Text(cert_text.get()), Text(key_text.get())};
}

std::string SerialOf(const X509* certificate) {
  const Owned<BIGNUM> number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  char* const text = BN_bn2hex(number.get());
  std::string serial = text;
  OPENSSL_free(text);
  return serial;
}

}  // namespace

Authority::Authority(const std::string& name) : name_(name), own_(Make(name, {}, nullptr)) {}

Identity Authority::Issue(const Wish& wish) const { return Make(name_ + " holder", wish, &own_); }

std::string Serial(const std::string& cert) { return SerialOf(ParseCertificate(cert).get()); }

std::string SerialShownBy(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string serial;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
    const Owned<SSL> ssl(SSL_new(context.get()));
    const unsigned char h2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl.get(), h2, sizeof(h2));
    SSL_set_fd(ssl.get(), fd);
    if (SSL_connect(ssl.get()) == 1) {
      const Owned<X509> certificate(SSL_get1_peer_certificate(ssl.get()));
      if (certificate != nullptr) serial = SerialOf(certificate.get());
    }
  }
  close(fd);
  return serial;
}

Folder::Folder() : path_((std::filesystem::temp_directory_path() / "attend-tls-XXXXXX").string()) {
  Require(mkdtemp(path_.data()) != nullptr, "mkdtemp");
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::Write(const std::string& name, const std::string& text) const {
  std::ofstream(path(name) + ".new", std::ios::binary) << text;
  std::filesystem::rename(path(name) + ".new", path(name));
  return path(name);
}

}  // namespace attend::integration
