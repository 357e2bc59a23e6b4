#include "server/process/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/process/attend_call.h"
#include "server/process/devices.h"
#include "server/process/generic_server.h"
#include "server/process/health_service.h"
#include "server/process/http_server.h"
#include "server/process/listen.h"
#include "server/process/log.h"
#include "server/process/server_info.h"
#include "server/process/small_call.h"

namespace attend::server {
namespace {

constexpr char kAttentionService[] = "attend.v1.AttentionService";
// A drain ends its refusals when no call has come for the first, or after the second.
constexpr absl::Duration kQuiet = absl::Milliseconds(100);
constexpr absl::Duration kQuietMax = absl::Seconds(2);
constexpr absl::Duration kSweepInterval = absl::Milliseconds(50);
// Calls get this long to end once they have been cancelled; more means a fault of ours.
constexpr absl::Duration kCancelGrace = absl::Seconds(5);

// Names a service to reflection. gRPC lists services by the paths of methods that it knows, and all of ours
// go to the generic service; so it gets one path for each service, of a method without a name.
class ListedService final : public grpc::Service {
 public:
  explicit ListedService(const char* path) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        path, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::UnknownMethodHandler("the server has no such method")));
  }
};

int Millis(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), INT_MAX));
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.request_bytes_max));
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
  made.hang_factor = static_cast<double>(options.hang_factor);
  made.hang_floor = options.hang_floor;
  return made;
}

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
        health_({"", kAttentionService}) {}

  ~GrpcServer() override {
    SetServing(false);
    if (grpc_ != nullptr) {
      registry_.Close();
      health_.Shutdown();
      grpc_->Shutdown(std::chrono::system_clock::now());
      grpc_->Wait();
      generic_->Shutdown();
    }
    if (scheduler_ != nullptr) scheduler_->Drain(kCancelGrace);
    http_.reset();
    grpc_.reset();
    // Slices of replies may lie with gRPC a moment longer than their calls.
    const absl::Time until = absl::Now() + kCancelGrace;
    while (devices_.pool != nullptr && devices_.pool->used_bytes() > 0 && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status Open() {
    for (const absl::string_view address : absl::StrSplit(options_.address, ',')) {
      if (!options_.insecure && !IsLocalAddress(address)) {
        return absl::InvalidArgumentError(absl::StrCat(
            address, " can be reached from other machines; say --insecure to serve there without TLS"));
      }
    }
    auto devices = MakeDevices(options_);
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
    return ServeHttp();
  }

  int grpc_port() const override { return grpc_port_; }
  int http_port() const override { return http_ == nullptr ? 0 : http_->port(); }

  std::string Describe() const override {
    return absl::StrJoin(scheduler_->devices(), ", ",
                         [](std::string* out, const std::unique_ptr<Device>& device) {
                           absl::StrAppend(out, device->info().name, " (", device->info().model, ")");
                         });
  }

  absl::Status Health() override {
    absl::Status health = scheduler_->Health();
    if (!health.ok()) SetServing(false);
    return health;
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

    if (options_.reflection) EnableReflection();
    grpc::ServerBuilder builder;
    SetArguments(options_, &builder);
    const std::vector<std::string> addresses = absl::StrSplit(options_.address, ',');
    std::vector<int> ports(addresses.size(), 0);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const absl::Status bindable = CheckBindable(addresses[i]);
      if (!bindable.ok()) return bindable;
      builder.AddListeningPort(addresses[i], grpc::InsecureServerCredentials(), &ports[i]);
    }
    if (options_.reflection) {
      for (ListedService& listed : listed_) builder.RegisterService(&listed);
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

  GenericCall::Handler* MakeHandler(GenericCall* call) {
    const std::string& method = call->context().method();
    if (method == "/attend.v1.AttentionService/Attend") return new AttendCall(services_, call);
    if (method == "/grpc.health.v1.Health/Watch") return health_.Watch(call);
    if (method == "/grpc.health.v1.Health/Check") {
      return new SmallCall(call, &side_registry_, options_.receive_timeout,
                           [this](const std::string& request) { return health_.Check(request); }, {});
    }
    if (method == "/attend.v1.InfoService/GetServerInfo") {
      metrics_->OnStarted(Method::kGetServerInfo);
      return new SmallCall(
          call, &side_registry_, options_.receive_timeout, [this](const std::string&) { return info_; },
          [this](absl::StatusCode code, absl::Duration time) {
            CallRecord record;
            record.code = code;
            record.total_ns = absl::ToInt64Nanoseconds(time);
            metrics_->OnHandled(Method::kGetServerInfo, record);
          });
    }
    metrics_->OnRejected("unimplemented");
    return nullptr;
  }

  // gRPC's plugins belong to the process and to every server built later.
  static void EnableReflection() {
    static std::once_flag once;
    std::call_once(once, &grpc::reflection::InitProtoReflectionServerBuilderPlugin);
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

  std::string Unready() const {
    const absl::Status health = scheduler_->Health();
    if (!health.ok()) return std::string(health.message());
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
    sample.ready = Unready().empty();
    for (const std::unique_ptr<Device>& device : scheduler_->devices()) {
      sample.devices.push_back({device->info().name, device->info().uuid, device->memory()});
    }
    return sample;
  }

  void SetServing(bool serving) {
    if (serving_.exchange(serving) == serving) return;
    health_.Set(serving ? HealthService::Status::kServing : HealthService::Status::kNotServing);
  }

  const ServerOptions options_;
  const std::unique_ptr<Metrics> metrics_;
  CallLog call_log_;
  ByteBudget large_budget_, small_budget_;
  CallRegistry registry_;
  CallRegistry side_registry_;  // calls that are answered in a drain, too
  Devices devices_;             // the pool outlives scheduler and calls
  std::unique_ptr<Scheduler> scheduler_;
  WireThreads wire_threads_;
  CallServices services_;
  ListedService listed_[3] = {ListedService("/attend.v1.AttentionService/"),
                              ListedService("/attend.v1.InfoService/"),
                              ListedService("/grpc.health.v1.Health/")};
  std::string info_;  // the reply of GetServerInfo
  HealthService health_;
  std::unique_ptr<GenericServer> generic_;  // outlives grpc_
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> serving_{false};
  int grpc_port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  auto server = std::make_unique<GrpcServer>(options);
  const absl::Status opened = server->Open();
  if (!opened.ok()) return opened;
  return server;
}

}  // namespace attend::server
