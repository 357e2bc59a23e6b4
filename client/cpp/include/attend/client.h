// Calls an Attend server.
//
//   std::vector<float> q = ..., k = ..., v = ...;           // [1, 8, 256, 64] each
//   auto client = attend::Client::Create("dns:///localhost:50051");
//   if (!client.ok()) return client.status();
//
//   attend::Request request;
//   const attend::Shape shape = {1, 8, 256, 64};
//   request.q = {attend::DataType::kFp32, shape, q.data()};
//   request.k = {attend::DataType::kFp32, shape, k.data()};
//   request.v = {attend::DataType::kFp32, shape, v.data()};
//   request.causal = attend::Causal::kBottomRight;
//   absl::StatusOr<attend::Response> response = (*client)->Attend(request);
//   if (!response.ok()) return response.status();
//   absl::Span<const float> out = response->out.as<float>();  // [1, 8, 256, 64]
#ifndef ATTEND_CLIENT_H_
#define ATTEND_CLIENT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "attend/status.h"
#include "attend/types.h"

namespace attend {
inline namespace client {

// Cancels the calls that it was given to. A copy is another handle of the same token. Thread-safe.
class CancelToken {
 public:
  CancelToken();
  // Ends the calls with kCancelled, those that start later too. The server drops their work.
  void Cancel();
  bool cancelled() const;

  class State;

 private:
  friend class Client;
  std::shared_ptr<State> state_;
};

struct TlsOptions {
  std::string root_certificates_pem;  // empty: the system's
  std::string certificate_pem;        // for mutual TLS; empty: none
  std::string private_key_pem;
  std::string server_name;  // to expect in the server's certificate; empty: the target's
};

// How to wait between tries of a call that the server could not take.
struct RetryPolicy {
  int attempts_max = 4;  // the first included; 1: no retries
  absl::Duration backoff_initial = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(1);
  double backoff_factor = 2;
};

struct ClientOptions {
  std::optional<TlsOptions> tls;  // unset: plain text
  std::string token;              // bearer token; empty: none
  // File that holds the token instead, with blanks and a newline around it as may be. Read again while the
  // client lives (at most once a second), so that it can be exchanged; where that fails, the last one stays.
  std::string token_file;
  // A token over plain text is refused unless the target is on this host, or this is set.
  bool allow_token_without_tls = false;
  absl::Duration timeout = absl::Seconds(60);  // of a call that says none; finite: no call waits for ever
  RetryPolicy retry;
  // Connections to each server. A call takes the one with the fewest calls in flight, so one caller at a
  // time uses one; large tensors of several callers move faster over several.
  int connections = 4;
  // A connection whose peer takes no bytes for so long, in the middle of a message, is closed.
  absl::Duration stall_timeout = absl::Seconds(10);
  // Calls only go to servers whose health check says SERVING.
  bool health_check = true;
};

struct CallOptions {
  std::optional<absl::Duration> timeout;  // unset: the client's. Positive and finite
  std::string request_id;                 // sent as x-request-id; empty: one is made
  std::string traceparent;                // W3C trace context to pass on; empty: none
  std::optional<CancelToken> cancel;
  // Where results go, each of exactly the result's size; empty: into a buffer of the response's own. On
  // an error their contents are unspecified.
  absl::Span<std::byte> out, lse, weights;
};

// A set of connections to one target, shared by all threads. Every method is thread-safe and may be
// called at any time until the destructor, which cancels what is in flight and waits for its callbacks.
//
// Calls that end with UNAVAILABLE are tried again, as are those with RESOURCE_EXHAUSTED when the server
// says when: attention has no side effects. A retry reads the caller's tensors again; none is copied.
//
// Not usable across fork: every call in a child of the process that made the client returns
// kFailedPrecondition, and so does Create there, because gRPC's threads do not survive a fork. Fork
// before the first client, or exec.
class Client {
 public:
  // target is a gRPC name: "dns:///host:50051" or "host:50051" (all addresses, taken in turn),
  // "unix:/path", "xds:///service". Connects when the first call needs it. kInvalidArgument for an empty
  // target or options that contradict each other.
  static absl::StatusOr<std::unique_ptr<Client>> Create(absl::string_view target, ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Computes attention and waits for it. The request's tensors are not written and are no longer used
  // when this returns. It returns by the deadline, or where a server stopped reading in the middle of a
  // message up to stall_timeout later: until then the kernel may still read the tensors. Refuses, before
  // anything is sent, what no server takes: requests and responses over kMessageBytesMax, tensors without
  // memory, result buffers of another size. Not from a callback.
  absl::StatusOr<Response> Attend(const Request& request, const CallOptions& options = {});

  // As Attend, without waiting: calls done exactly once, on one of gRPC's threads or before this returns.
  // Tensors and result buffers must stay valid until then. done must neither block nor destroy the client.
  void AttendAsync(const Request& request, const CallOptions& options,
                   std::function<void(absl::StatusOr<Response>)> done);

  // What the server is and can do. Asked once, without retries; timeout unset: the client's.
  absl::StatusOr<ServerInfo> GetServerInfo(std::optional<absl::Duration> timeout = {});
  // OK when the server (or a service of it, by full name) says SERVING; else kUnavailable with the reason,
  // also where it cannot be reached; kNotFound for a service that it does not know. Asked once.
  absl::Status CheckHealth(absl::string_view service = "", std::optional<absl::Duration> timeout = {});

  // Largest message in bytes: protobuf's 2 GiB less room for what is not tensor bytes.
  static constexpr int64_t kMessageBytesMax = (int64_t{1} << 31) - (int64_t{1} << 20);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_H_
