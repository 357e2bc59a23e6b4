// Everything that can be set about attend-server, in one struct and one table. A flag beats the
// environment, which beats the configuration file.
#ifndef ATTEND_SERVER_PROCESS_OPTIONS_H_
#define ATTEND_SERVER_PROCESS_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace attend::server {

// An eighth of receive_bytes_max is kept for small requests, those of at most an eighth of it again: a few
// slow senders of large messages hold up nobody else.
inline constexpr int64_t kSmallShare = 8;

// Values and their defaults. What each means is said in the table (option_table.cc), which is also the text
// of --help and of the README. 0 stands for "sized to this machine" where the table says so.
struct ServerOptions {
  std::string address = "127.0.0.1:50051";
  std::string metrics_address = "127.0.0.1:9464";
  std::string port_file;
  bool insecure = false;
  bool reflection = true;

  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  bool tls_require_client_cert = false;
  std::string tokens_file;
  int64_t tokens_max = 1024;
  absl::Duration reload_interval = absl::Seconds(5);

  std::string device = "auto";
  std::string devices = "all";
  int64_t cpu_threads = 0;
  int64_t cpu_slots = 2;
  int64_t cpu_workspace_bytes_max = int64_t{4} << 30;
  int64_t device_slots = 4;
  int64_t device_short_slots = 2;
  int64_t device_bytes_max = 0;
  int64_t device_staging_bytes_max = int64_t{1} << 30;
  int64_t launch_time_max_us = 2000;
  absl::Duration null_launch_time = absl::ZeroDuration();

  int64_t request_bytes_max = int64_t{1} << 30;
  int64_t response_bytes_max = int64_t{1} << 30;
  int64_t receive_bytes_max = 0;
  int64_t wire_bytes_max = 0;
  int64_t receive_keep_bytes = 0;
  int64_t unannounced_request_bytes = int64_t{4} << 20;
  int64_t host_bytes_max = 0;
  int64_t calls_max = 16384;
  int64_t sequences_max = 65536;
  int64_t heads_max = 65536;
  int64_t weight_rows_max = 65536;
  int64_t grpc_threads = 0;
  int64_t wire_threads = 0;
  int64_t wire_inline_bytes = int64_t{512} << 10;

  int64_t queue_requests_max = 4096;
  int64_t queue_bytes_max = 0;
  int64_t batch_requests_max = 64;
  int64_t batch_tokens_max = int64_t{1} << 20;
  int64_t batch_bytes_max = int64_t{64} << 20;
  absl::Duration batch_time_max = absl::Milliseconds(50);
  int64_t max_queue_delay_us = 0;
  absl::Duration long_request_time = absl::Milliseconds(100);
  absl::Duration short_request_time = absl::Microseconds(200);
  int64_t queue_wait_percent_max = 50;

  absl::Duration grant_timeout = absl::Seconds(30);
  absl::Duration receive_timeout = absl::Seconds(60);
  absl::Duration send_timeout = absl::Seconds(60);
  absl::Duration drain_delay = absl::ZeroDuration();
  absl::Duration drain_timeout = absl::Seconds(30);
  int64_t hang_factor = 20;
  absl::Duration hang_floor = absl::Seconds(30);

  int64_t streams_max = 1024;
  int64_t watches_max = 16384;
  int64_t metadata_bytes_max = 16 << 10;
  absl::Duration connection_age_max = absl::Seconds(300);
  absl::Duration connection_age_grace = absl::Seconds(60);
  absl::Duration keepalive_time = absl::Seconds(120);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration ping_interval_min = absl::Seconds(30);

  std::string log_format = "plain";
  std::string log_level = "info";
  int64_t log_calls_per_second = 100;

  // What is asked for instead of serving; not in the table.
  bool print_config = false;
  bool check_config = false;
};

// How an option's value is written.
enum class OptionKind {
  kText,
  kFlag,      // true or false; the flag alone means true
  kCount,     // an integer
  kBytes,     // an integer with an optional KiB, MiB or GiB
  kDuration,  // as 500ms, 30s, 5m
};

struct OptionRow {
  const char* name;   // as a flag, without the hyphens
  const char* group;  // heading in --help
  OptionKind kind;
  std::variant<std::string ServerOptions::*, bool ServerOptions::*, int64_t ServerOptions::*,
               absl::Duration ServerOptions::*>
      member;
  int64_t min = 0;      // of kCount and kBytes
  const char* choices;  // of kText: "a|b|c"; null: any text
  const char* help;
  int64_t max = std::numeric_limits<int64_t>::max();  // of kCount and kBytes
};

// The table. README.md lists the same rows (a test compares them).
std::span<const OptionRow> OptionTable();
// A row's value as it would be written in the configuration file, without quotes.
std::string OptionValue(const OptionRow& row, const ServerOptions& options);
// "ATTEND_QUEUE_BYTES_MAX" for "queue-bytes-max".
std::string EnvironmentName(const OptionRow& row);

// Reads arguments, environment and configuration file. Where the process should end instead of serving
// (--help, --version, an error) the text has been printed and exit_code is set; else it is -1.
struct ParsedOptions {
  ServerOptions options;
  int exit_code = -1;
  std::vector<std::string> warnings;  // ATTEND_* variables that name no option
};
ParsedOptions ParseOptions(int argc, const char* const* argv);

// Fills in what is sized to the machine, and checks what no single row can: InvalidArgument names the
// flag.
absl::Status ResolveOptions(ServerOptions* options);

// The options as a configuration file, with help as comments.
std::string PrintConfig(const ServerOptions& options);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_OPTIONS_H_
