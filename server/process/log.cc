#include "server/process/log.h"

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace attend::server {
namespace {

std::atomic<bool> json{false};

spdlog::level::level_enum SpdLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The text inside a JSON string. What is not printable ASCII is escaped, so that no caller's bytes can
// break a line or a terminal.
std::string Escape(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20 || byte >= 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", byte);
      out.append(buffer);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string FieldText(const LogField& field, bool quote_always) {
  if (const auto* number = std::get_if<int64_t>(&field.value)) return absl::StrCat(*number);
  if (const auto* real = std::get_if<double>(&field.value)) return absl::StrFormat("%.1f", *real);
  const std::string& text = std::get<std::string>(field.value);
  const bool quote = quote_always || text.empty() || text.find_first_of(" \"=\\\t\n\r") != std::string::npos;
  const std::string escaped = Escape(text);
  return quote ? absl::StrCat("\"", escaped, "\"") : escaped;
}

std::shared_ptr<spdlog::logger> Logger() {
  static std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("attend", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%fZ %l %v", spdlog::pattern_time_type::utc);
    return made;
  }();
  return logger;
}

struct Fault {
  absl::Mutex mutex;
  std::string text ABSL_GUARDED_BY(mutex);
};

Fault& Listeners() {
  static Fault* fault = new Fault;
  return *fault;
}

void FromGrpc(gpr_log_func_args* args) {
  if (args->severity < GPR_LOG_SEVERITY_ERROR) return;
  if (absl::StrContains(args->message, "Failed accept4")) {
    absl::MutexLock lock(&Listeners().mutex);
    Listeners().text = args->message;
  }
  static RateLimit* limit = new RateLimit(10);
  if (!limit->Take(absl::Now())) return;
  Log(LogLevel::kWarn, "grpc", {{"text", std::string(args->message)}});
}

}  // namespace

void InitLog(absl::string_view format, absl::string_view level) {
  json = format == "json";
  if (json) {
    Logger()->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l",%v})",
                          spdlog::pattern_time_type::utc);
  }
  Logger()->set_level(spdlog::level::from_str(std::string(level)));
  Logger()->flush_on(spdlog::level::debug);
  gpr_set_log_function(&FromGrpc);
}

std::string ListenerFault() {
  absl::MutexLock lock(&Listeners().mutex);
  return Listeners().text;
}

void Log(LogLevel level, absl::string_view message, const std::vector<LogField>& fields) {
  if (!Logger()->should_log(SpdLevel(level))) return;
  std::string line = json ? absl::StrCat("\"message\":\"", Escape(message), "\"") : Escape(message);
  for (const LogField& field : fields) {
    if (json) {
      absl::StrAppend(&line, ",\"", field.key, "\":", FieldText(field, true));
    } else {
      absl::StrAppend(&line, " ", field.key, "=", FieldText(field, false));
    }
  }
  Logger()->log(SpdLevel(level), line);
}

bool RateLimit::Take(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (last_ != absl::InfinitePast()) {
    tokens_ += absl::ToDoubleSeconds(now - last_) * static_cast<double>(per_second_);
    tokens_ = std::min(tokens_, static_cast<double>(per_second_));
  }
  last_ = now;
  if (tokens_ < 1.0) return false;
  tokens_ -= 1.0;
  return true;
}

}  // namespace attend::server
