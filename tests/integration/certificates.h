// Certificates that a test makes for itself.
#ifndef ATTEND_TESTS_INTEGRATION_CERTIFICATES_H_
#define ATTEND_TESTS_INTEGRATION_CERTIFICATES_H_

#include <string>

#include "absl/time/time.h"

namespace attend::integration {

// A certificate and its private key, in PEM.
struct Identity {
  std::string cert, key;
};

struct Wish {
  std::string names = "DNS:localhost,IP:127.0.0.1";  // subjectAltName
  absl::Duration from = -absl::Hours(1);             // validity, from now
  absl::Duration until = absl::Hours(24);
  int rsa_bits = 0;  // 0: an elliptic curve
};

// An authority with a key of its own.
class Authority {
 public:
  explicit Authority(const std::string& name);
  const std::string& cert() const { return own_.cert; }
  Identity Issue(const Wish& wish = {}) const;

 private:
  std::string name_;
  Identity own_;
};

// The serial number of a certificate, in hexadecimal.
std::string Serial(const std::string& cert);
// That of the certificate that a TLS server on 127.0.0.1:port shows to a new connection; empty where it shows
// none. Seen by OpenSSL, not by gRPC.
std::string SerialShownBy(int port);

// A folder under the temporary one, gone with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // At once, as an operator should: written beside it and renamed. Gives the path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_CERTIFICATES_H_
