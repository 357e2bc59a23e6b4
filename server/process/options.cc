#include "server/process/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "attend_version.h"
#include "kernels/cpu/cpu_count.h"
#include "server/process/listen.h"
#include "server/process/machine.h"
#include "server/process/small_file.h"

extern char** environ;

namespace attend::server {
namespace {

constexpr int kExitUsage = 2;

std::optional<int64_t> ParseBytes(absl::string_view text) {
  int64_t unit = 1;
  constexpr std::pair<absl::string_view, int64_t> kUnits[] = {
      {"kib", int64_t{1} << 10}, {"mib", int64_t{1} << 20}, {"gib", int64_t{1} << 30}, {"b", 1}};
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  absl::string_view number = lower;
  for (const auto& [suffix, factor] : kUnits) {
    if (number.size() > suffix.size() && number.substr(number.size() - suffix.size()) == suffix) {
      number.remove_suffix(suffix.size());
      unit = factor;
      break;
    }
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(number), &value)) return std::nullopt;
  if (value < 0 || value > std::numeric_limits<int64_t>::max() / unit) return std::nullopt;
  return value * unit;
}

// Writes a value into its member; the message says what is wrong, empty if nothing is.
std::string SetOption(const OptionRow& row, const std::string& text, ServerOptions* options) {
  switch (row.kind) {
    case OptionKind::kText: {
      const std::vector<std::string> choices =
          absl::StrSplit(row.choices == nullptr ? "" : row.choices, '|', absl::SkipEmpty());
      if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
        return absl::StrCat("'", text, "' is none of ", row.choices);
      }
      options->*std::get<std::string ServerOptions::*>(row.member) = text;
      return "";
    }
    case OptionKind::kFlag: {
      bool value = false;
      if (!absl::SimpleAtob(text, &value)) return absl::StrCat("'", text, "' is neither true nor false");
      options->*std::get<bool ServerOptions::*>(row.member) = value;
      return "";
    }
    case OptionKind::kCount:
    case OptionKind::kBytes: {
      int64_t value = 0;
      if (row.kind == OptionKind::kBytes) {
        const std::optional<int64_t> bytes = ParseBytes(text);
        if (!bytes) return absl::StrCat("'", text, "' is no size such as 65536, 64KiB or 1GiB");
        value = *bytes;
      } else if (!absl::SimpleAtoi(text, &value)) {
        return absl::StrCat("'", text, "' is no integer");
      }
      if (value < row.min) return absl::StrCat("is ", value, ", but the least is ", row.min);
      if (value > row.max) return absl::StrCat("is ", value, ", but the most is ", row.max);
      options->*std::get<int64_t ServerOptions::*>(row.member) = value;
      return "";
    }
    case OptionKind::kDuration: {
      absl::Duration value;
      if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration()) {
        return absl::StrCat("'", text, "' is no duration such as 500ms, 30s or 5m");
      }
      options->*std::get<absl::Duration ServerOptions::*>(row.member) = value;
      return "";
    }
  }
  return "";
}

// TOML with underscores in names. CLI11 lets the file beat the environment; leaving out what the
// environment sets turns that around.
class FileBelowEnvironment : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items;
    for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(input)) {
      item.name = absl::StrReplaceAll(item.name, {{"_", "-"}});
      const auto rows = OptionTable();
      const auto row =
          std::find_if(rows.begin(), rows.end(), [&](const OptionRow& r) { return item.name == r.name; });
      const bool in_environment = row != rows.end() && std::getenv(EnvironmentName(*row).c_str()) != nullptr;
      if (!in_environment) items.push_back(std::move(item));
    }
    return items;
  }
};

// Why the file of options cannot be taken, or nothing. What is not there CLI11 finds.
std::string WhyNoFile(const std::string& path) { return std::string(CheckRegularFile(path).message()); }

// What CLI11 says, in words that fit: it calls every file of options INI.
std::string Explain(const CLI::Error& error) {
  return absl::StrReplaceAll(
      error.what(), {{"INI was not able to parse", "--config: no TOML, or no option of that name:"}});
}

// What stands for the value in --help.
std::string TypeName(const OptionRow& row) {
  switch (row.kind) {
    case OptionKind::kText:
      return row.choices != nullptr ? row.choices : "TEXT";
    case OptionKind::kFlag:
      return "";
    case OptionKind::kCount:
      return "N";
    case OptionKind::kBytes:
      return "SIZE";
    case OptionKind::kDuration:
      return "TIME";
  }
  return "";
}

std::string HelpText(const OptionRow& row) {
  std::string text = row.help;
  const std::string value = OptionValue(row, ServerOptions());
  if (!value.empty()) absl::StrAppend(&text, " [", value, "]");
  return text;
}

// That no address can be reached from other machines in plain text unless the operator has said so, and that
// the TLS options go together.
absl::Status CheckSecurity(const ServerOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together");
  }
  if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (options.tls_require_client_cert && options.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls-require-client-cert needs --tls-client-ca");
  }
  for (const absl::string_view address : absl::StrSplit(options.address, ',')) {
    const absl::Status wrong = CheckAddress(std::string(address));
    if (!wrong.ok()) return absl::InvalidArgumentError(absl::StrCat("--address: ", wrong.message()));
  }
  if (options.insecure || !options.tls_cert.empty()) return absl::OkStatus();
  for (const absl::string_view address : absl::StrSplit(options.address, ',')) {
    if (IsLocalAddress(address)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--address: ", address, " can be reached from other machines",
                     options.tokens_file.empty() ? "" : ", and tokens would travel there in plain text",
                     "; give --tls-cert and --tls-key, or say --insecure to serve there without TLS"));
  }
  return absl::OkStatus();
}

std::vector<std::string> UnknownVariables() {
  // Those of the tool, which may run in the same container, are none of a misspelt option.
  std::set<std::string> known = {"ATTEND_CONFIG", "ATTEND_TIMEOUT_S",       "ATTEND_TLS",
                                 "ATTEND_TLS_CA", "ATTEND_TLS_SERVER_NAME", "ATTEND_TOKEN_FILE"};
  for (const OptionRow& row : OptionTable()) known.insert(EnvironmentName(row));
  std::vector<std::string> unknown;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::vector<std::string> parts = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    if (parts[0].rfind("ATTEND_", 0) == 0 && known.count(parts[0]) == 0) {
      unknown.push_back(absl::StrCat(parts[0], " in the environment names no option"));
    }
  }
  return unknown;
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv) {
  ParsedOptions parsed;
  CLI::App app("Attention over gRPC: computes softmax(q k^T scale) v over tensors that callers send.",
               "attend-server");
  app.set_version_flag("--version", "attend-server " ATTEND_VERSION);
  // CLI11 looks for the file before it looks at the environment: the variable is the default, and its file
  // has to be there.
  const char* const variable = std::getenv("ATTEND_CONFIG");
  const std::string file = variable == nullptr ? "" : variable;
  app.set_config("--config", file, "TOML file of these options, with underscores in their names",
                 !file.empty())
      ->check(&WhyNoFile, "")
      ->envname("ATTEND_CONFIG");
  app.config_formatter(std::make_shared<FileBelowEnvironment>());
  app.allow_config_extras(false);
  app.add_flag("--print-config", parsed.options.print_config, "print the options in force and exit")
      ->configurable(false);
  app.add_flag("--check-config", parsed.options.check_config, "check the options and exit")
      ->configurable(false);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("attend-server: ", Explain(error), "\n`attend-server --help` lists the options.\n");
  });
  app.footer(
      "SIZE is a number with KiB, MiB or GiB, TIME one with us, ms, s, m or h; [ ] holds the default.\n"
      "Every option is also an environment variable (--queue-bytes-max is ATTEND_QUEUE_BYTES_MAX) and a\n"
      "line of the configuration file (queue_bytes_max); a flag beats the environment beats the file.");

  const auto rows = OptionTable();
  std::vector<std::string> texts(rows.size());
  std::vector<CLI::Option*> handles(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string flag = absl::StrCat("--", rows[i].name);
    handles[i] = rows[i].kind == OptionKind::kFlag ? app.add_flag(flag, texts[i], HelpText(rows[i]))
                                                   : app.add_option(flag, texts[i], HelpText(rows[i]));
    handles[i]->group(rows[i].group)->envname(EnvironmentName(rows[i]))->type_name(TypeName(rows[i]));
  }
  try {
    const std::string wrong_file = WhyNoFile(file);
    if (!wrong_file.empty()) throw CLI::ValidationError("ATTEND_CONFIG", wrong_file);
    // CLI11 would take the next flag for the value.
    for (int i = 1; i < argc; ++i) {
      const absl::string_view flag = argv[i];
      if (absl::StartsWith(flag, "--") && flag.find('=') == flag.size() - 1) {
        throw CLI::ValidationError(std::string(flag), "has no value: give it one, or leave it out");
      }
    }
    app.parse(argc, argv);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (handles[i]->count() == 0) continue;
      const std::string wrong = SetOption(rows[i], texts[i], &parsed.options);
      if (!wrong.empty()) throw CLI::ValidationError(absl::StrCat("--", rows[i].name), wrong);
    }
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    parsed.exit_code = code == 0 ? 0 : kExitUsage;
    return parsed;
  }
  parsed.warnings = UnknownVariables();
  return parsed;
}

absl::Status ResolveOptions(ServerOptions* options) {
  const absl::Status secure = CheckSecurity(*options);
  if (!secure.ok()) return secure;
  constexpr int64_t kPoolLeast = int64_t{64} << 20;
  constexpr int64_t kHostLeast = int64_t{64} << 10;   // what the warm-up takes, and some
  constexpr int64_t kKeepLeast = int64_t{128} << 10;  // glibc's own
  constexpr int64_t kKeepMost = int64_t{64} << 20;    // more than a thread's heap holds has no effect
  const int64_t memory = MemoryBytes();
  if (options->host_bytes_max != 0 && options->host_bytes_max < kHostLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host-bytes-max: is ", options->host_bytes_max, ", but the least is ", kHostLeast));
  }
  if (options->host_bytes_max == 0) options->host_bytes_max = std::max(kPoolLeast, memory / 4 >> 20 << 20);
  if (options->receive_bytes_max == 0)
    options->receive_bytes_max = std::max(kPoolLeast, memory / 8 >> 20 << 20);
  if (options->wire_bytes_max == 0) {
    options->wire_bytes_max = options->receive_bytes_max + options->receive_bytes_max / 4 + kPoolLeast;
  }
  if (options->queue_bytes_max == 0) options->queue_bytes_max = options->host_bytes_max;
  // What can never be had must not be promised for later.
  options->queue_bytes_max = std::min(options->queue_bytes_max, options->host_bytes_max);
  if (options->grpc_threads == 0) options->grpc_threads = std::clamp<int64_t>(cpu::UsableCpus() / 2, 2, 16);
  if (options->wire_threads == 0) options->wire_threads = std::clamp<int64_t>(cpu::UsableCpus() / 2, 1, 8);
  if (options->receive_keep_bytes == 0) {
    options->receive_keep_bytes =
        std::clamp(options->receive_bytes_max / (2 * options->grpc_threads), kKeepLeast, kKeepMost);
  }
  if (options->cpu_threads == 0) options->cpu_threads = cpu::UsableCpus();

  // What can never be granted must not be accepted: the caller would wait for nothing.
  options->request_bytes_max = std::min(
      options->request_bytes_max, options->receive_bytes_max - options->receive_bytes_max / kSmallShare);
  options->unannounced_request_bytes =
      std::min(options->unannounced_request_bytes, options->request_bytes_max);
  if (options->devices != "all") {
    std::set<int> named;
    for (const absl::string_view part : absl::StrSplit(options->devices, ',')) {
      int index = 0;
      if (!absl::SimpleAtoi(part, &index) || index < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--devices: '", part, "' is no index; give all or 0,1"));
      }
      if (!named.insert(index).second) {
        return absl::InvalidArgumentError(absl::StrCat("--devices: ", index, " is named twice"));
      }
    }
  }
  return absl::OkStatus();
}

std::string PrintConfig(const ServerOptions& options) {
  std::string text;
  const char* group = "";
  for (const OptionRow& row : OptionTable()) {
    if (absl::string_view(group) != row.group) {
      absl::StrAppend(&text, text.empty() ? "" : "\n", "# ", row.group, "\n\n");
      group = row.group;
    }
    const bool quoted =
        row.kind == OptionKind::kText || row.kind == OptionKind::kBytes || row.kind == OptionKind::kDuration;
    const char* quote = quoted ? "\"" : "";
    absl::StrAppend(&text, "# ", row.help, "\n", absl::StrReplaceAll(row.name, {{"-", "_"}}), " = ", quote,
                    OptionValue(row, options), quote, "\n");
  }
  return text;
}

}  // namespace attend::server
