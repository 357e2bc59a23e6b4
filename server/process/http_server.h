// The HTTP side: /metrics, /healthz, /readyz.
#ifndef ATTEND_SERVER_PROCESS_HTTP_SERVER_H_
#define ATTEND_SERVER_PROCESS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

struct mg_context;
struct mg_connection;

namespace attend::server {

// Serves from threads of its own until destroyed.
class HttpServer {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // the text that Prometheus reads
    std::function<std::string()> unready;  // why the server is not ready; empty: it is
  };

  // address: host:port, port 0 for a free one. The error names the address and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, Handlers handlers);
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer(std::string address, Handlers handlers)
      : address_(std::move(address)), handlers_(std::move(handlers)) {}
  static int OnMetrics(mg_connection* connection, void* self);
  static int OnHealth(mg_connection* connection, void* self);
  static int OnReady(mg_connection* connection, void* self);

  const std::string address_;
  const Handlers handlers_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_HTTP_SERVER_H_
