#include "client/cpp/channels.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace attend {
inline namespace client {
namespace {

constexpr char kRoundRobin[] = R"({"loadBalancingConfig":[{"round_robin":{}}]})";
constexpr char kRoundRobinOfHealthy[] =
    R"({"loadBalancingConfig":[{"round_robin":{}}],)"
    R"("healthCheckConfig":{"serviceName":"attend.v1.AttentionService"}})";

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ClientOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.tls->root_certificates_pem;
  ssl.pem_cert_chain = options.tls->certificate_pem;
  ssl.pem_private_key = options.tls->private_key_pem;
  return grpc::SslCredentials(ssl);
}

}  // namespace

bool IsLocalTarget(absl::string_view target) {
  if (absl::StartsWith(target, "unix:") || absl::StartsWith(target, "unix-abstract:")) return true;
  absl::ConsumePrefix(&target, "dns:");
  absl::ConsumePrefix(&target, "ipv4:");
  absl::ConsumePrefix(&target, "ipv6:");
  absl::ConsumePrefix(&target, "///");
  // A list of addresses may leave this host.
  if (absl::StrContains(target, ",")) return false;
  if (absl::StartsWith(target, "[")) return absl::StartsWith(target, "[::1]");
  const absl::string_view host = target.substr(0, target.rfind(':'));
  return host == "localhost" || host == "127.0.0.1";
}

absl::Status CheckOptions(absl::string_view target, const ClientOptions& options) {
  if (target.empty()) return absl::InvalidArgumentError("the target is empty");
  if (options.connections < 1 || options.connections > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("connections is ", options.connections, ", must be 1 to 64"));
  }
  if (options.timeout <= absl::ZeroDuration() || options.timeout == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError("timeout must be positive and finite");
  }
  if (options.stall_timeout < absl::Milliseconds(1) || options.stall_timeout > absl::Hours(1)) {
    return absl::InvalidArgumentError("stall_timeout must be 1 ms to 1 h");
  }
  const RetryPolicy& retry = options.retry;
  if (retry.attempts_max < 1 || retry.backoff_initial <= absl::ZeroDuration() ||
      retry.backoff_max < retry.backoff_initial || retry.backoff_factor < 1) {
    return absl::InvalidArgumentError(
        "retry needs attempts_max >= 1, 0 < backoff_initial <= backoff_max, backoff_factor >= 1");
  }
  const bool has_token = !options.token.empty() || !options.token_file.empty();
  if (has_token && !options.tls && !options.allow_token_without_tls && !IsLocalTarget(target)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the token would travel to ", target,
        " in plain text: turn TLS on (ClientOptions::tls; attend --tls), or allow it all the same "
        "(ClientOptions::allow_token_without_tls; attend --insecure)"));
  }
  if (options.tls && options.tls->certificate_pem.empty() != options.tls->private_key_pem.empty()) {
    return absl::InvalidArgumentError("certificate_pem and private_key_pem go together");
  }
  return absl::OkStatus();
}

ChannelSet::ChannelSet(absl::string_view target, const ClientOptions& options,
                       std::unique_ptr<TokenSource> token)
    : target_(target),
      options_(options),
      token_(std::move(token)),
      credentials_(Credentials(options)),
      admin_(NewChannel(false)) {
  absl::MutexLock lock(&mutex_);
  for (int i = 0; i < options.connections; ++i) {
    entries_.push_back({std::make_shared<grpc::GenericStub>(NewChannel(options.health_check)), 0});
  }
}

std::shared_ptr<grpc::Channel> ChannelSet::NewChannel(bool health_check) const {
  grpc::ChannelArguments arguments;
  // gRPC's 4 MiB is far below a tensor; sizes are checked against the request's own instead.
  arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  arguments.SetMaxSendMessageSize(std::numeric_limits<int>::max());
  arguments.SetServiceConfigJSON(health_check ? kRoundRobinOfHealthy : kRoundRobin);
  // Else channels of one target share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Calls are tried again here, without gRPC's buffer for that.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A retry soon after a restart must not find the channel still waiting for its next try to connect.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  // Sets TCP_USER_TIMEOUT: the kernel closes a connection whose peer has stopped reading, which frees the
  // caller's memory. No keepalive pings come of it, for which servers punish: the first is weeks away.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max() - 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options_.stall_timeout)));
  // gRPC asks the environment for a proxy, for targets on this host too: what is to stay here would leave it.
  if (IsLocalTarget(target_)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options_.tls && !options_.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options_.tls->server_name);
  }
  return grpc::CreateCustomChannel(target_, credentials_, arguments);
}

ChannelSet::Lease ChannelSet::Take() {
  Lease lease;
  absl::MutexLock lock(&mutex_);
  const auto least = std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.in_flight < b.in_flight;
  });
  ++least->in_flight;
  lease.set_ = this;
  lease.index_ = static_cast<size_t>(least - entries_.begin());
  lease.stub_ = least->stub;
  return lease;
}

ChannelSet::Lease& ChannelSet::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    set_ = std::exchange(other.set_, nullptr);
    index_ = other.index_;
    stub_ = std::move(other.stub_);
  }
  return *this;
}

void ChannelSet::Lease::Release() {
  if (set_ == nullptr) return;
  stub_.reset();
  {
    absl::MutexLock lock(&set_->mutex_);
    --set_->entries_[index_].in_flight;
  }
  set_ = nullptr;
}

}  // namespace client
}  // namespace attend
