#include "server/process/server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/device/cuda/cuda_api.h"
#include "server/error.h"
#include "server/process/attend_call.h"
#include "server/process/authenticate.h"
#include "server/process/credentials.h"
#include "server/process/devices.h"
#include "server/process/generic_server.h"
#include "server/process/health_service.h"
#include "server/process/http_server.h"
#include "server/process/listen.h"
#include "server/process/log.h"
#include "server/process/reflection_service.h"
#include "server/process/reloader.h"
#include "server/process/server_info.h"
#include "server/process/small_call.h"

namespace attend::server {
namespace {

constexpr char kAttentionService[] = "attend.v1.AttentionService";
constexpr char kInfoService[] = "attend.v1.InfoService";
// A drain ends its refusals when no call has come for the first, or after the second.
constexpr absl::Duration kQuiet = absl::Milliseconds(100);
constexpr absl::Duration kQuietMax = absl::Seconds(2);
constexpr absl::Duration kSweepInterval = absl::Milliseconds(50);
// A watch lasts as long as its connection.
constexpr absl::Duration kWatchRetryDelay = absl::Seconds(1);
// Calls get this long to end once they have been cancelled; more means a fault of ours.
constexpr absl::Duration kCancelGrace = absl::Seconds(5);

int Millis(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), INT_MAX));
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.request_bytes_max));
  // gRPC looks at a message's size when all of it is there, and nobody sees an unannounced one before: this
  // bounds what such messages take meanwhile.
  grpc::ResourceQuota quota("attend");
  quota.Resize(static_cast<size_t>(options.wire_bytes_max));
  builder->SetResourceQuota(quota);
  builder->SetMaxSendMessageSize(-1);  // replies are bounded before they are computed
  // A small compressed message can inflate without end.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.streams_max));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.metadata_bytes_max));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Millis(options.connection_age_max));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Millis(options.connection_age_grace));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Millis(options.ping_interval_min));
}

}  // namespace

SchedulerOptions MakeSchedulerOptions(const ServerOptions& options) {
  SchedulerOptions made;
  made.queue_requests_max = options.queue_requests_max;
  made.queue_bytes_max = options.queue_bytes_max;
  made.batch_requests_max = options.batch_requests_max;
  made.batch_tokens_max = options.batch_tokens_max;
  made.batch_bytes_max = options.batch_bytes_max;
  made.batch_time_max = options.batch_time_max;
  made.max_queue_delay = absl::Microseconds(options.max_queue_delay_us);
  made.long_request_time = options.long_request_time;
  made.short_request_time = options.short_request_time;
  made.hang_factor = static_cast<double>(options.hang_factor);
  made.hang_floor = options.hang_floor;
  made.queue_wait_share_max = static_cast<double>(options.queue_wait_percent_max) / 100;
  return made;
}

namespace {

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(const ServerOptions& options)
      : options_(options),
        metrics_(Metrics::Create()),
        call_log_(options.log_calls_per_second, metrics_.get()),
        large_budget_(options.receive_bytes_max - options.receive_bytes_max / kSmallShare),
        small_budget_(options.receive_bytes_max / kSmallShare),
        registry_(options.calls_max, kSweepInterval),
        side_registry_(options.calls_max, kSweepInterval),
        wire_threads_(options.wire_threads),
        health_({"", kAttentionService}, options.watches_max),
        reflection_({kAttentionService, kInfoService, "grpc.health.v1.Health",
                     "grpc.reflection.v1alpha.ServerReflection"}) {}

  ~GrpcServer() override {
    SetServing(false);
    if (grpc_ != nullptr) {
      registry_.Close();
      health_.Shutdown();
      reflection_.Shutdown();
      grpc_->Shutdown(std::chrono::system_clock::now());
      grpc_->Wait();
      generic_->Shutdown();
    }
    if (scheduler_ != nullptr) scheduler_->Drain(kCancelGrace);
    http_.reset();
    reloader_.reset();
    grpc_.reset();
    // Slices of replies may lie with gRPC a moment longer than their calls.
    const absl::Time until = absl::Now() + kCancelGrace;
    while (devices_.pool != nullptr && devices_.pool->used_bytes() > 0 && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status Open(const Gpus& gpus) {
    auto credentials = LoadCredentials(options_);
    if (!credentials.ok()) return credentials.status();
    credentials_ = *std::move(credentials);
    auto devices = MakeDevices(options_, gpus);
    if (!devices.ok()) return devices.status();
    devices_ = *std::move(devices);
    Log(LogLevel::kInfo, "device", {{"choice", devices_.choice}});
    const absl::Status warm = WarmUp(devices_.devices, devices_.pool.get());
    if (!warm.ok()) return warm;
    std::vector<DeviceInfo> infos;
    for (const auto& device : devices_.devices) infos.push_back(device->info());
    metrics_->AddDevices(infos);
    scheduler_ =
        Scheduler::Create(MakeSchedulerOptions(options_), std::move(devices_.devices), metrics_.get());
    const absl::Status listening = Listen();
    if (!listening.ok()) return listening;
    SayWhoMayCall();
    StartReloader();
    return ServeHttp();
  }

  int grpc_port() const override { return grpc_port_; }
  int http_port() const override { return http_ == nullptr ? 0 : http_->port(); }

  std::string tls() const override {
    if (credentials_.tls == nullptr) return "off";
    return options_.tls_require_client_cert ? "mutual" : "on";
  }
  int64_t tokens() const override { return credentials_.tokens == nullptr ? 0 : credentials_.tokens->size(); }

  std::string Describe() const override {
    return absl::StrJoin(scheduler_->devices(), ", ",
                         [](std::string* out, const std::unique_ptr<Device>& device) {
                           absl::StrAppend(out, device->info().name, " (", device->info().model, ")");
                         });
  }

  absl::Status Health() override {
    absl::Status fault = Fault();
    if (!fault.ok()) SetServing(false);
    return fault;
  }

  bool Drain(absl::Duration delay) override {
    SetServing(false);
    absl::SleepFor(delay);
    registry_.Close();
    const absl::Time until = absl::Now() + options_.drain_timeout;
    bool whole = registry_.AwaitEmpty(options_.drain_timeout);
    // gRPC resets calls that arrive after its shutdown; ours says UNAVAILABLE, which clients try elsewhere.
    // So calls already on their way are waited for.
    registry_.AwaitQuiet(kQuiet, std::min(kQuietMax, until - absl::Now()));
    if (!whole) Log(LogLevel::kWarn, "drain time is up", {{"calls_cancelled", registry_.size()}});
    health_.Shutdown();
    reflection_.Shutdown();
    // No call is left, or the time is up; this closes the connections and cancels the rest.
    grpc_->Shutdown(absl::ToChronoTime(std::max(until, absl::Now())));
    grpc_->Wait();
    whole = scheduler_->Drain(std::max(until - absl::Now(), kCancelGrace)) && whole;
    return whole;
  }

 private:
  absl::Status Listen() {
    services_.scheduler = scheduler_.get();
    services_.pool = devices_.pool.get();
    services_.large_budget = &large_budget_;
    services_.small_budget = &small_budget_;
    services_.small_bytes_max = small_budget_.capacity() / kSmallShare;
    services_.registry = &registry_;
    services_.wire_threads = &wire_threads_;
    services_.metrics = metrics_.get();
    services_.log = &call_log_;
    services_.limits.request_bytes_max = options_.request_bytes_max;
    services_.limits.batch_max = options_.sequences_max;
    services_.limits.heads_max = options_.heads_max;
    services_.limits.weight_rows_max = options_.weight_rows_max;
    services_.limits.response_bytes_max = options_.response_bytes_max;
    services_.unannounced_bytes = options_.unannounced_request_bytes;
    services_.wire_inline_bytes = options_.wire_inline_bytes;
    services_.grant_timeout = options_.grant_timeout;
    services_.receive_timeout = options_.receive_timeout;
    services_.send_timeout = options_.send_timeout;
    generic_ = std::make_unique<GenericServer>(options_.grpc_threads,
                                               [this](GenericCall* call) { return MakeHandler(call); });
    info_ = MakeServerInfo(options_, scheduler_->devices()).SerializeAsString();

    grpc::ServerBuilder builder;
    SetArguments(options_, &builder);
    const std::vector<std::string> addresses = absl::StrSplit(options_.address, ',');
    std::vector<int> ports(addresses.size(), 0);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const absl::Status bindable = CheckBindable(addresses[i]);
      if (!bindable.ok()) return bindable;
      builder.AddListeningPort(
          addresses[i],
          credentials_.tls != nullptr ? credentials_.tls->Credentials() : grpc::InsecureServerCredentials(),
          &ports[i]);
    }
    generic_->Register(&builder);
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr) return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.address));
    generic_->Start();
    for (size_t i = 0; i < addresses.size() && grpc_port_ == 0; ++i) {
      if (!absl::StartsWith(addresses[i], "unix:")) grpc_port_ = ports[i];
    }
    return absl::OkStatus();
  }

  GenericCall::Handler* MakeWatch(GenericCall* call) {
    if (GenericCall::Handler* const watch = health_.Watch(call)) return watch;
    metrics_->OnRejected("watches_full");
    return new RefusedCall(
        call,
        Exhausted("WATCHES_FULL", "as many health watches are open as the server takes (--watches-max)",
                  kWatchRetryDelay),
        {});
  }

  GenericCall::Handler* MakeHandler(GenericCall* call) {
    const std::string& method = call->context().method();
    // Health needs no token: probes have none, and gRPC's clients send none with their own health checks.
    if (method == "/grpc.health.v1.Health/Watch") return MakeWatch(call);
    if (method == "/grpc.health.v1.Health/Check") {
      return new SmallCall(call, &side_registry_, options_.receive_timeout,
                           [this](const std::string& request) { return health_.Check(request); }, {});
    }
    absl::StatusOr<std::string> caller = Authenticate(call->context(), credentials_.tokens.get());
    if (method == "/attend.v1.AttentionService/Attend") {
      return new AttendCall(services_, call, std::move(caller));
    }
    SmallEnd end;
    const bool info = method == "/attend.v1.InfoService/GetServerInfo";
    if (info) {
      metrics_->OnStarted(Method::kGetServerInfo);
      end = [this](absl::StatusCode code, absl::Duration time) {
        CallRecord record;
        record.code = code;
        record.total_ns = absl::ToInt64Nanoseconds(time);
        metrics_->OnHandled(Method::kGetServerInfo, record);
      };
    }
    if (!caller.ok()) {
      metrics_->OnRejected("unauthenticated");
      return new RefusedCall(call, caller.status(), std::move(end));
    }
    if (info) {
      return new SmallCall(
          call, &side_registry_, options_.receive_timeout, [this](const std::string&) { return info_; },
          std::move(end));
    }
    if (options_.reflection && ReflectionService::IsMethod(method)) {
      return reflection_.Handle(call, &side_registry_, options_.receive_timeout);
    }
    metrics_->OnRejected("unimplemented");
    return nullptr;
  }

  void SayWhoMayCall() const {
    const std::vector<std::string> addresses = absl::StrSplit(options_.address, ',');
    if (std::all_of(addresses.begin(), addresses.end(), &IsLocalAddress)) return;
    if (credentials_.tls == nullptr) {
      Log(LogLevel::kWarn, "other machines reach this server in plain text", {{"address", options_.address}});
    }
    if (credentials_.tokens == nullptr && !options_.tls_require_client_cert) {
      Log(LogLevel::kWarn,
          "whoever reaches this server may call it: it needs no token and no client certificate",
          {{"address", options_.address}});
    }
  }

  void StartReloader() {
    std::vector<Reloader::Source> sources;
    if (credentials_.tls != nullptr) {
      sources.push_back({"tls", [this] { return credentials_.tls->Reload(); }});
    }
    if (credentials_.tokens != nullptr) {
      sources.push_back({"tokens", [this] { return credentials_.tokens->Reload(); }});
    }
    reloader_ = std::make_unique<Reloader>(std::move(sources), options_.reload_interval, metrics_.get());
  }

  absl::Status ServeHttp() {
    metrics_->SetSampler([this] { return TakeSample(); });
    if (options_.metrics_address != "off" && !options_.metrics_address.empty()) {
      HttpServer::Handlers handlers;
      handlers.metrics = [this] { return metrics_->Text(); };
      handlers.unready = [this] { return Unready(); };
      auto http = HttpServer::Start(options_.metrics_address, std::move(handlers));
      if (!http.ok()) return http.status();
      http_ = *std::move(http);
    }
    SetServing(true);
    return absl::OkStatus();
  }

  // OK while devices and listeners are sound.
  absl::Status Fault() const {
    const std::string listener = ListenerFault();
    if (listener.empty()) return scheduler_->Health();
    return absl::UnavailableError(absl::StrCat("no connection can be accepted any more: ", listener));
  }

  std::string Unready() const {
    const absl::Status fault = Fault();
    if (!fault.ok()) return std::string(fault.message());
    return serving_ ? "" : "draining";
  }

  Sample TakeSample() const {
    Sample sample;
    sample.receive_used = large_budget_.used() + small_budget_.used();
    sample.receive_capacity = large_budget_.capacity() + small_budget_.capacity();
    sample.receive_waiting = large_budget_.waiting() + small_budget_.waiting();
    sample.host_used = devices_.pool->used_bytes();
    sample.host_peak = devices_.pool->peak_bytes();
    sample.host_capacity = devices_.pool->capacity();
    sample.inflight = registry_.size();
    const SchedulerQueue queue = scheduler_->queue();
    sample.queue_requests = queue.requests;
    sample.queue_bytes = queue.host_bytes;
    sample.ready = Unready().empty();
    if (credentials_.tls != nullptr) sample.certificate_expiry = credentials_.tls->expiry();
    const std::vector<int> busy = scheduler_->BusySlots();
    for (size_t d = 0; d < busy.size(); ++d) {
      const Device& device = *scheduler_->devices()[d];
      sample.devices.push_back(
          {device.info().name, device.info().uuid, device.memory(), busy[d], device.info().slots});
    }
    return sample;
  }

  void SetServing(bool serving) {
    if (serving_.exchange(serving) == serving) return;
    health_.Set(serving ? HealthService::Status::kServing : HealthService::Status::kNotServing);
  }

  const ServerOptions options_;
  const std::unique_ptr<Metrics> metrics_;
  Credentials credentials_;  // outlive the gRPC server
  CallLog call_log_;
  ByteBudget large_budget_, small_budget_;
  CallRegistry registry_;
  CallRegistry side_registry_;  // calls that are answered in a drain, too
  Devices devices_;             // the pool outlives scheduler and calls
  std::unique_ptr<Scheduler> scheduler_;
  WireThreads wire_threads_;
  CallServices services_;
  std::string info_;  // the reply of GetServerInfo
  HealthService health_;
  ReflectionService reflection_;
  std::unique_ptr<GenericServer> generic_;  // outlives grpc_
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Reloader> reloader_;
  std::atomic<bool> serving_{false};
  int grpc_port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  return Start(options, RealGpus());
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, const Gpus& gpus) {
  auto server = std::make_unique<GrpcServer>(options);
  const absl::Status opened = server->Open(gpus);
  if (!opened.ok()) return opened;
  return server;
}

}  // namespace attend::server
