#include "server/process/http_server.h"

#include <civetweb.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/process/listen.h"
#include "server/process/log.h"

namespace attend::server {
namespace {

// Prometheus 3 scrapes nothing without a Content-Type that it knows.
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
// civetweb holds a thread for each connection, idle until the request is there: so many that half-sent ones
// have to come by the dozen before a probe waits, and then not for long.
constexpr char kConnectionsMax[] = "64";
constexpr char kTimeoutMs[] = "2000";
constexpr char kPlainType[] = "text/plain; charset=utf-8";

int Answer(mg_connection* connection, int status, const char* reason, const char* type,
           absl::string_view body) {
  const char* method = mg_get_request_info(connection)->request_method;
  if (std::strcmp(method, "GET") != 0 && std::strcmp(method, "HEAD") != 0) {
    status = 405;
    reason = "Method Not Allowed";
    body = "GET only\n";
    type = kPlainType;
  }
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            status, reason, type, body.size());
  if (std::strcmp(method, "HEAD") != 0) mg_write(connection, body.data(), body.size());
  return status;
}

int LogMessage(const mg_connection*, const char* message) {
  Log(LogLevel::kDebug, "http", {{"text", std::string(message)}});
  return 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, Handlers handlers) {
  const absl::Status free = CheckBindable(address);
  if (!free.ok()) return free;
  std::unique_ptr<HttpServer> server(new HttpServer(address, std::move(handlers)));
  mg_callbacks callbacks{};
  callbacks.log_message = &LogMessage;
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           kConnectionsMax,
                           "request_timeout_ms",
                           kTimeoutMs,
                           "tcp_nodelay",
                           "1",
                           "enable_directory_listing",
                           "no",
                           nullptr};
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  mg_set_request_handler(server->context_, "/metrics$", &OnMetrics, server.get());
  mg_set_request_handler(server->context_, "/healthz$", &OnHealth, server.get());
  mg_set_request_handler(server->context_, "/readyz$", &OnReady, server.get());
  mg_server_port port{};
  if (mg_get_server_ports(server->context_, 1, &port) == 1) server->port_ = port.port;
  return server;
}

HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  // civetweb looks for the end only when a connection comes or every two seconds: too long for a drain.
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    mg_stop(context_);
    stopped = true;
  });
  while (!stopped) {
    Touch(address_, port_);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stopper.join();
}

int HttpServer::OnMetrics(mg_connection* connection, void* self) {
  return Answer(connection, 200, "OK", kMetricsType, static_cast<HttpServer*>(self)->handlers_.metrics());
}

int HttpServer::OnHealth(mg_connection* connection, void*) {
  return Answer(connection, 200, "OK", kPlainType, "ok\n");
}

int HttpServer::OnReady(mg_connection* connection, void* self) {
  const std::string unready = static_cast<HttpServer*>(self)->handlers_.unready();
  if (unready.empty()) return Answer(connection, 200, "OK", kPlainType, "ready\n");
  return Answer(connection, 503, "Service Unavailable", kPlainType, absl::StrCat(unready, "\n"));
}

}  // namespace attend::server
