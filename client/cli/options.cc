#include "client/cli/options.h"

#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/files.h"

namespace attend::cli {
namespace {

constexpr Kernel kKernels[] = {Kernel::kAuto, Kernel::kNaive, Kernel::kOnline, Kernel::kFlash};
constexpr Layout kLayouts[] = {Layout::kBhld, Layout::kBlhd, Layout::kPacked};
constexpr Causal kCausals[] = {Causal::kNone, Causal::kBottomRight, Causal::kTopLeft};
constexpr DataType kDataTypes[] = {DataType::kFp32, DataType::kFp16, DataType::kBf16};

template <typename T, size_t N>
CLI::IsMember OneOf(const T (&values)[N]) {
  std::vector<std::string> names;
  for (const T value : values) names.emplace_back(Name(value));
  return CLI::IsMember(names);
}

// The flags have checked the name.
template <typename T, size_t N>
T Parse(const T (&values)[N], const std::string& name) {
  for (const T value : values) {
    if (Name(value) == name) return value;
  }
  return values[0];
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Context::Connect() const {
  ClientOptions options;
  options.timeout = timeout();
  options.token_file = token_file;
  options.allow_token_without_tls = insecure;
  if (tls || !tls_ca.empty() || !tls_cert.empty() || !tls_key.empty() || !tls_server_name.empty()) {
    options.tls.emplace();
    options.tls->server_name = tls_server_name;
    for (const auto& [path, text] : {std::pair(&tls_ca, &options.tls->root_certificates_pem),
                                     std::pair(&tls_cert, &options.tls->certificate_pem),
                                     std::pair(&tls_key, &options.tls->private_key_pem)}) {
      if (path->empty()) continue;
      absl::StatusOr<std::string> pem = ReadFile(*path);
      if (!pem.ok()) return pem.status();
      if (pem->empty()) return absl::InvalidArgumentError(absl::StrCat(*path, ": is empty"));
      *text = *std::move(pem);
    }
  }
  return Client::Create(address, options);
}

CLI::Validator Between(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= min && value <= max) return "";
        return absl::StrCat("'", text, "' is no number from ", min, " to ", max);
      },
      "", "BETWEEN");
}

void AddContextFlags(CLI::App& app, Context& context) {
  context.address_option =
      app.add_option(
             "--address", context.address,
             "Server: host:port, dns:///host:port, unix:/path or xds:///service (default localhost:50051)")
          ->envname("ATTEND_ADDRESS")
          ->type_name("SERVER");
  app.add_option("--timeout-s", context.timeout_s, "Deadline of each call in seconds")
      ->envname("ATTEND_TIMEOUT_S")
      ->check(Between(1e-6, kSecondsMax))
      ->capture_default_str();
  app.add_flag("--json", context.json, "Print JSON instead of text");
  app.add_flag("--tls", context.tls,
               "Use TLS with the system's certificates; the other --tls flags turn it on, too")
      ->envname("ATTEND_TLS");
  app.add_option("--tls-ca", context.tls_ca, "Use TLS and trust the certificates in this PEM file")
      ->envname("ATTEND_TLS_CA")
      ->type_name("FILE");
  app.add_option("--tls-cert", context.tls_cert, "Client certificate for mutual TLS (PEM file)")
      ->envname("ATTEND_TLS_CERT")
      ->type_name("FILE");
  app.add_option("--tls-key", context.tls_key, "Key of --tls-cert (PEM file)")
      ->envname("ATTEND_TLS_KEY")
      ->type_name("FILE");
  app.add_option("--tls-server-name", context.tls_server_name, "Name to expect in the server's certificate")
      ->envname("ATTEND_TLS_SERVER_NAME")
      ->type_name("NAME");
  app.add_option("--token-file", context.token_file, "File that holds a bearer token")
      ->envname("ATTEND_TOKEN_FILE")
      ->type_name("FILE");
  app.add_flag("--insecure", context.insecure, "Send the token to another host in plain text, without TLS")
      ->envname("ATTEND_INSECURE");
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "attend: %s\n", Describe(status).c_str());
  return kExitError;
}

int FailHere(const absl::Status& status) {
  std::fprintf(stderr, "attend: %s\n", std::string(status.message()).c_str());
  return kExitError;
}

void AttentionFlags::Apply(Request& request) const {
  request.kernel = Parse(kKernels, kernel);
  request.layout = Parse(kLayouts, layout);
  request.causal = Parse(kCausals, causal);
  request.scale = scale;
  request.softcap = softcap;
  request.window_left = window_left;
  request.window_right = window_right;
  request.q_lengths = q_lengths;
  request.kv_lengths = kv_lengths;
  request.weight_rows = weight_rows;
  request.return_lse = lse;
  request.return_weights = weights;
}

void AddKernelFlag(CLI::App& command, std::string& kernel) {
  command.add_option("--kernel", kernel, "Kernel to run")->check(OneOf(kKernels))->capture_default_str();
}

void AddAttentionFlags(CLI::App& command, AttentionFlags& flags) {
  AddKernelFlag(command, flags.kernel);
  command.add_option("--layout", flags.layout, "Layout of q, k and v: [B,H,L,D], [B,L,H,D] or [total,H,D]")
      ->check(OneOf(kLayouts))
      ->capture_default_str();
  command.add_option("--causal", flags.causal, "Causal mask, and the corner in which its diagonal ends")
      ->check(OneOf(kCausals))
      ->capture_default_str();
  command.add_option("--scale", flags.scale, "Factor of q*k (default 1/sqrt(head_dim))");
  command.add_option("--softcap", flags.softcap, "Soft cap c of the scores: c*tanh(score/c)");
  command.add_option("--window-left", flags.window_left,
                     "Keys before the diagonal that a query sees (default all)");
  command.add_option("--window-right", flags.window_right,
                     "Keys after the diagonal that a query sees (default all)");
  command.add_option("--q-lengths", flags.q_lengths, "Query length of each sequence")->delimiter(',');
  command.add_option("--kv-lengths", flags.kv_lengths, "Key length of each sequence")->delimiter(',');
  command.add_flag("--lse", flags.lse, "Ask for the log-sum-exp of each row");
  CLI::Option* weights = command.add_flag("--weights", flags.weights, "Ask for all attention weights");
  command.add_option("--weight-rows", flags.weight_rows, "Ask for the attention weights of these query rows")
      ->delimiter(',')
      ->excludes(weights);
}

Inputs RandomFlags::Make() const { return RandomInputs(sizes, ParseDataType(dtype), seed); }

void AddRandomFlags(CLI::App& command, RandomFlags& flags) {
  command.add_option("--batch", flags.sizes.batch, "Sequences")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--heads", flags.sizes.heads, "Query heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--kv-heads", flags.sizes.kv_heads, "Key/value heads (default as many as query heads)")
      ->check(CLI::PositiveNumber);
  command.add_option("--length", flags.sizes.length, "Queries and keys of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--head-dim", flags.sizes.head_dim, "Size of a head: a multiple of 8 up to 256")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--dtype", flags.dtype, "Element type")->check(OneOf(kDataTypes))->capture_default_str();
  command.add_option("--seed", flags.seed, "Seed of the random tensors")->capture_default_str();
}

DataType ParseDataType(const std::string& name) { return Parse(kDataTypes, name); }
Kernel ParseKernel(const std::string& name) { return Parse(kKernels, name); }

}  // namespace attend::cli
