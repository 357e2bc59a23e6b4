// Addresses to listen on, looked at before they are used, so that a fault gets a clear line.
#ifndef ATTEND_SERVER_PROCESS_LISTEN_H_
#define ATTEND_SERVER_PROCESS_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attend::server {

// OK for host:port and unix:path, whether or not anybody could listen there.
absl::Status CheckAddress(const std::string& address);

// Whether only this machine can reach the address: a loopback address, localhost, or unix:.
bool IsLocalAddress(absl::string_view address);

// The address itself, or where its host is a name with several addresses, each of them as host:port.
std::vector<std::string> ResolveAddress(const std::string& address);
// host:0 with the port given; others as they are.
std::string WithPort(const std::string& address, int port);

// OK where somebody could bind the address now; else what is wrong, as "cannot listen on
// 127.0.0.1:50051: Address already in use". A unix: path that a live server listens on is in use; a
// stale one is not.
absl::Status CheckBindable(const std::string& address);

// Connects to host:port with another port in place of its own, and hangs up.
void Touch(const std::string& address, int port);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_LISTEN_H_
