// Flags that several commands share.
#ifndef ATTEND_CLIENT_CLI_OPTIONS_H_
#define ATTEND_CLIENT_CLI_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/client.h"
#include "attend/types.h"
#include "client/cli/inputs.h"

namespace attend::cli {

// Exit codes of the tool.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;  // the call, or what was checked, failed
inline constexpr int kExitUsage = 2;  // the command line

// What every command has. One per process.
struct Context {
  std::string address = "localhost:50051";
  CLI::Option* address_option = nullptr;
  double timeout_s = 60;
  std::string token_file, tls_ca, tls_cert, tls_key, tls_server_name;
  bool tls = false;
  bool insecure = false;
  bool json = false;
  int exit_code = kExitOk;

  // Whether the user named a server, by flag or environment.
  bool address_given() const { return address_option->count() > 0; }
  absl::Duration timeout() const { return absl::Seconds(timeout_s); }
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
};
void AddContextFlags(CLI::App& app, Context& context);

// Prints an error as people read it, and gives the exit code.
int Fail(const absl::Status& status);
// The same for what went wrong here, with a file or a flag: no code of the API stands before it.
int FailHere(const absl::Status& status);

// A number from min to max. CLI11's own checks let nan pass, with which no loop over a time ends.
CLI::Validator Between(double min, double max);
inline constexpr double kSecondsMax = 1e6;

// --kernel, --causal, ... : all options of the API that are not tensors.
struct AttentionFlags {
  std::string kernel = "auto", layout = "bhld", causal = "none";
  std::optional<float> scale, softcap;
  std::optional<int64_t> window_left, window_right;
  std::vector<int64_t> q_lengths, kv_lengths, weight_rows;
  bool lse = false, weights = false;

  void Apply(Request& request) const;
};
void AddKernelFlag(CLI::App& command, std::string& kernel);
void AddAttentionFlags(CLI::App& command, AttentionFlags& flags);

// --batch, --heads, ... of random inputs.
struct RandomFlags {
  Sizes sizes;
  std::string dtype = "fp32";
  uint64_t seed = 1;
  Inputs Make() const;
};
void AddRandomFlags(CLI::App& command, RandomFlags& flags);

DataType ParseDataType(const std::string& name);  // of a name that the flags accept
Kernel ParseKernel(const std::string& name);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_OPTIONS_H_
