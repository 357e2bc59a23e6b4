#include <cctype>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/process/options.h"

namespace attend::server {
namespace {

using O = ServerOptions;
using K = OptionKind;

constexpr int64_t kThreadsMax = 1024;
constexpr int64_t kGrpcIntMax = std::numeric_limits<int32_t>::max();  // gRPC takes no larger value

constexpr OptionRow kTable[] = {
    {"address", "Listening", K::kText, &O::address, 0, nullptr,
     "where gRPC listens: host:port or unix:path, several with commas; port 0 takes a free one"},
    {"metrics-address", "Listening", K::kText, &O::metrics_address, 0, nullptr,
     "where HTTP serves /metrics, /healthz and /readyz; off serves none"},
    {"port-file", "Listening", K::kText, &O::port_file, 0, nullptr,
     "file that gets the gRPC port and, on a second line, the HTTP port once they are open"},
    {"insecure", "Listening", K::kFlag, &O::insecure, 0, nullptr,
     "allow a gRPC address that is neither loopback nor unix: without TLS"},
    {"reflection", "Listening", K::kFlag, &O::reflection, 0, nullptr, "serve gRPC reflection"},

    {"tls-cert", "TLS and tokens", K::kText, &O::tls_cert, 0, nullptr,
     "PEM file of the server's certificate, and of those between it and its root; turns TLS on"},
    {"tls-key", "TLS and tokens", K::kText, &O::tls_key, 0, nullptr,
     "PEM file of the key of tls-cert, without a passphrase"},
    {"tls-client-ca", "TLS and tokens", K::kText, &O::tls_client_ca, 0, nullptr,
     "PEM file of the roots by which clients' certificates are verified, where they show one"},
    {"tls-require-client-cert", "TLS and tokens", K::kFlag, &O::tls_require_client_cert, 0, nullptr,
     "refuse connections without a client certificate (mutual TLS)"},
    {"tokens-file", "TLS and tokens", K::kText, &O::tokens_file, 0, nullptr,
     "file of bearer tokens, a line 'name token' each; calls without one are UNAUTHENTICATED"},
    {"tokens-max", "TLS and tokens", K::kCount, &O::tokens_max, 1, nullptr, "tokens in tokens-file"},
    {"reload-interval", "TLS and tokens", K::kDuration, &O::reload_interval, 0, nullptr,
     "how often these files are looked at, and taken where they have changed; 0: only at start"},

    {"device", "Devices", K::kText, &O::device, 0, "auto|cuda|cpu|null",
     "what computes; auto takes GPUs, the CPU where there is none or none is new enough; null answers zeros"},
    {"devices", "Devices", K::kText, &O::devices, 0, nullptr,
     "which GPUs: all, or indices with commas; one that is too old among others ends the start"},
    {"cpu-threads", "Devices", K::kCount, &O::cpu_threads, 0, nullptr,
     "threads of the CPU device; 0: as many as the CPU quota allows", kThreadsMax},
    {"cpu-slots", "Devices", K::kCount, &O::cpu_slots, 1, nullptr,
     "batches in flight on the CPU device, which share its threads", kThreadsMax},
    {"cpu-workspace-bytes-max", "Devices", K::kBytes, &O::cpu_workspace_bytes_max, 1 << 20, nullptr,
     "memory that kernels on the CPU device may take for scores and tiles, taken as it is needed"},
    {"device-slots", "Devices", K::kCount, &O::device_slots, 1, nullptr,
     "batches in flight on each GPU, whose copies and kernels overlap", kThreadsMax},
    {"device-short-slots", "Devices", K::kCount, &O::device_short_slots, 0, nullptr,
     "of these, batches of short requests; more of those wait and share the next launch; 0: any"},
    {"device-bytes-max", "Devices", K::kBytes, &O::device_bytes_max, 0, nullptr,
     "memory of each GPU for tensors and workspace, taken at start; 0: nine tenths of what is free"},
    {"device-staging-bytes-max", "Devices", K::kBytes, &O::device_staging_bytes_max, 0, nullptr,
     "of it, memory for tensors of requests of 8 MiB and more that are copied while the rest is parsed; a "
     "sixteenth at most; less than 8 MiB: none"},
    {"launch-time-max-us", "Devices", K::kCount, &O::launch_time_max_us, 1, nullptr,
     "microseconds that one GPU launch may be predicted to take; longer ones are cut by heads"},
    {"null-launch-time", "Devices", K::kDuration, &O::null_launch_time, 0, nullptr,
     "what each launch of the null device takes, one after another: a busy device, for tests"},

    {"request-bytes-max", "Bounds", K::kBytes, &O::request_bytes_max, 1024, nullptr,
     "largest request message; at most 2 GiB - 1", kGrpcIntMax},
    {"response-bytes-max", "Bounds", K::kBytes, &O::response_bytes_max, 1024, nullptr,
     "largest reply message; at most 2 GiB - 1", kGrpcIntMax},
    {"receive-bytes-max", "Bounds", K::kBytes, &O::receive_bytes_max, 0, nullptr,
     "bytes of requests being received, an eighth of them kept for small ones; others wait in flow control; "
     "0: an eighth of the memory"},
    {"wire-bytes-max", "Bounds", K::kBytes, &O::wire_bytes_max, 0, nullptr,
     "memory of connections and of messages on their way, whatever they announced; above it gRPC closes idle "
     "connections and ends calls whose message is incomplete; 0: receive-bytes-max, a quarter and 64 MiB"},
    {"receive-keep-bytes", "Bounds", K::kBytes, &O::receive_keep_bytes, 0, nullptr,
     "freed memory of messages that each gRPC thread keeps for the next; 0: half of its share of "
     "receive-bytes-max, at most 64MiB"},
    {"unannounced-request-bytes", "Bounds", K::kBytes, &O::unannounced_request_bytes, 1024, nullptr,
     "size assumed of a request without attend-request-bytes metadata until it has arrived"},
    {"host-bytes-max", "Bounds", K::kBytes, &O::host_bytes_max, 0, nullptr,
     "host memory for tensors of requests and replies; 0: a quarter of the memory"},
    {"calls-max", "Bounds", K::kCount, &O::calls_max, 1, nullptr, "calls in flight, in any stage"},
    {"sequences-max", "Bounds", K::kCount, &O::sequences_max, 1, nullptr, "sequences in one request"},
    {"heads-max", "Bounds", K::kCount, &O::heads_max, 1, nullptr, "query heads in one request"},
    {"weight-rows-max", "Bounds", K::kCount, &O::weight_rows_max, 0, nullptr, "weight_rows in one request"},
    {"grpc-threads", "Bounds", K::kCount, &O::grpc_threads, 0, nullptr,
     "threads that receive calls and send replies; 0: half the CPUs, 2 to 16", kThreadsMax},
    {"wire-threads", "Bounds", K::kCount, &O::wire_threads, 0, nullptr,
     "threads that copy large tensors off the wire; 0: half the CPUs, at most 8", kThreadsMax},
    {"wire-inline-bytes", "Bounds", K::kBytes, &O::wire_inline_bytes, 0, nullptr,
     "requests up to this size are copied on the thread that received them, and keep their inputs until the "
     "reply is gone"},

    {"queue-requests-max", "Queue and batches", K::kCount, &O::queue_requests_max, 1, nullptr,
     "requests that wait for a device"},
    {"queue-bytes-max", "Queue and batches", K::kBytes, &O::queue_bytes_max, 0, nullptr,
     "host bytes of requests that wait, run or are being answered, host-bytes-max at most; 0: as much"},
    {"batch-requests-max", "Queue and batches", K::kCount, &O::batch_requests_max, 1, nullptr,
     "requests in one launch"},
    {"batch-tokens-max", "Queue and batches", K::kCount, &O::batch_tokens_max, 1, nullptr,
     "query tokens in one launch"},
    {"batch-bytes-max", "Queue and batches", K::kBytes, &O::batch_bytes_max, 1, nullptr,
     "tensor bytes in one launch; copies of larger ones would not overlap other launches"},
    {"batch-time-max", "Queue and batches", K::kDuration, &O::batch_time_max, 0, nullptr,
     "predicted time of one launch; a request that exceeds a batch's bound by itself runs alone"},
    {"max-queue-delay-us", "Queue and batches", K::kCount, &O::max_queue_delay_us, 0, nullptr,
     "microseconds that a request waits for company when a device is free"},
    {"long-request-time", "Queue and batches", K::kDuration, &O::long_request_time, 0, nullptr,
     "predicted time from which a request leaves a device's last free slot to shorter ones"},
    {"short-request-time", "Queue and batches", K::kDuration, &O::short_request_time, 0, nullptr,
     "predicted time below which a request takes one of device-short-slots, and its kernels go before "
     "those of longer ones"},
    {"queue-wait-percent-max", "Queue and batches", K::kCount, &O::queue_wait_percent_max, 0, nullptr,
     "share of the time to its deadline that a request may be predicted to wait; else it is refused; 0: any"},

    {"grant-timeout", "Time limits", K::kDuration, &O::grant_timeout, 0, nullptr,
     "longest wait for receive-bytes-max; then RESOURCE_EXHAUSTED"},
    {"receive-timeout", "Time limits", K::kDuration, &O::receive_timeout, 0, nullptr,
     "longest that a request may take to arrive; then DEADLINE_EXCEEDED"},
    {"send-timeout", "Time limits", K::kDuration, &O::send_timeout, 0, nullptr,
     "longest that a caller may take to read its reply; then the call is cancelled"},
    {"drain-delay", "Time limits", K::kDuration, &O::drain_delay, 0, nullptr,
     "after SIGTERM, how long to keep accepting while readiness already says no"},
    {"drain-timeout", "Time limits", K::kDuration, &O::drain_timeout, 0, nullptr,
     "longest wait for accepted requests after SIGTERM; then they are cancelled"},
    {"hang-factor", "Time limits", K::kCount, &O::hang_factor, 1, nullptr,
     "a launch that takes this many times its predicted time, and hang-floor, is a hung device; the process "
     "then ends"},
    {"hang-floor", "Time limits", K::kDuration, &O::hang_floor, 0, nullptr,
     "least time after which a launch is taken for hung"},

    {"streams-max", "Connections", K::kCount, &O::streams_max, 1, nullptr, "calls at once on one connection",
     kGrpcIntMax},
    {"watches-max", "Connections", K::kCount, &O::watches_max, 1, nullptr,
     "health checks that watch at once, on all connections"},
    {"metadata-bytes-max", "Connections", K::kBytes, &O::metadata_bytes_max, 1024, nullptr,
     "metadata of one call", kGrpcIntMax},
    {"connection-age-max", "Connections", K::kDuration, &O::connection_age_max, 0, nullptr,
     "age at which a connection is closed so that clients spread anew"},
    {"connection-age-grace", "Connections", K::kDuration, &O::connection_age_grace, 0, nullptr,
     "time that calls get to end on a connection of that age"},
    {"keepalive-time", "Connections", K::kDuration, &O::keepalive_time, 0, nullptr,
     "idle time after which the server pings a client"},
    {"keepalive-timeout", "Connections", K::kDuration, &O::keepalive_timeout, 0, nullptr,
     "time within which the ping must be answered"},
    {"ping-interval-min", "Connections", K::kDuration, &O::ping_interval_min, 0, nullptr,
     "shortest interval of clients' pings on an idle connection"},

    {"log-format", "Logs", K::kText, &O::log_format, 0, "plain|json", "lines for people or for machines"},
    {"log-level", "Logs", K::kText, &O::log_level, 0, "debug|info|warn|error", "least severe line written"},
    {"log-calls-per-second", "Logs", K::kCount, &O::log_calls_per_second, 0, nullptr,
     "most call lines a second; the rest are counted in attend_log_suppressed_total"},
};

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"GiB", "MiB", "KiB"};
  for (int i = 0; i < 3; ++i) {
    const int64_t unit = int64_t{1} << (30 - 10 * i);
    if (bytes >= unit && bytes % unit == 0) return absl::StrCat(bytes / unit, kUnits[i]);
  }
  return absl::StrCat(bytes);
}

}  // namespace

std::span<const OptionRow> OptionTable() { return kTable; }

std::string OptionValue(const OptionRow& row, const ServerOptions& options) {
  switch (row.kind) {
    case OptionKind::kText:
      return options.*std::get<std::string ServerOptions::*>(row.member);
    case OptionKind::kFlag:
      return options.*std::get<bool ServerOptions::*>(row.member) ? "true" : "false";
    case OptionKind::kCount:
      return absl::StrCat(options.*std::get<int64_t ServerOptions::*>(row.member));
    case OptionKind::kBytes:
      return BytesText(options.*std::get<int64_t ServerOptions::*>(row.member));
    case OptionKind::kDuration:
      return absl::FormatDuration(options.*std::get<absl::Duration ServerOptions::*>(row.member));
  }
  return "";
}

std::string EnvironmentName(const OptionRow& row) {
  std::string name = "ATTEND_";
  for (const char* c = row.name; *c != '\0'; ++c) {
    name.push_back(*c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(*c))));
  }
  return name;
}

}  // namespace attend::server
