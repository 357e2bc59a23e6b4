#include "attend/client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "attend/v1/info.grpc.pb.h"
#include "client/cpp/call.h"
#include "client/cpp/channels.h"
#include "client/cpp/status_internal.h"
#include "client/cpp/wire.h"

namespace attend {
inline namespace client {
namespace {

// The process in which gRPC's threads live; 0 before the first client.
std::atomic<pid_t> grpc_process{0};

absl::Status CheckNotForked() {
  const pid_t process = grpc_process.load(std::memory_order_relaxed);
  if (process == 0 || process == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("process ", getpid(), " was forked from process ",
                                                    process,
                                                    ", which had made an attend::Client; gRPC does not "
                                                    "survive a fork: fork before the first client, or exec"));
}

std::string NewRequestId() {
  thread_local absl::BitGen random;
  return absl::StrFormat("%016x%016x", absl::Uniform<uint64_t>(random), absl::Uniform<uint64_t>(random));
}

}  // namespace

class CancelToken::State {
 public:
  void Cancel() {
    std::vector<std::shared_ptr<Call>> calls;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      for (auto& [id, weak] : calls_) {
        if (auto call = weak.lock()) calls.push_back(std::move(call));
      }
      calls_.clear();
    }
    for (const auto& call : calls) call->Cancel();
  }
  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  // False where the token is cancelled already.
  bool Add(const std::shared_ptr<Call>& call) {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) calls_.emplace(call.get(), call);
    return !cancelled_;
  }
  void Remove(const Call* call) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }

 private:
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const Call*, std::weak_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

CancelToken::CancelToken() : state_(std::make_shared<State>()) {}
void CancelToken::Cancel() { state_->Cancel(); }
bool CancelToken::cancelled() const { return state_->cancelled(); }

class Client::Impl {
 public:
  Impl(absl::string_view target, ClientOptions options, std::unique_ptr<TokenSource> token)
      : options_(std::move(options)), channels_(target, options_, std::move(token)) {}

  ~Impl() {
    std::vector<std::shared_ptr<Call>> calls;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [key, call] : in_flight_) calls.push_back(call);
    }
    for (const auto& call : calls) call->Cancel();
    calls.clear();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](absl::flat_hash_map<const Call*, std::shared_ptr<Call>>* map) { return map->empty(); },
        &in_flight_));
  }

  absl::StatusOr<absl::Time> Deadline(std::optional<absl::Duration> asked) const {
    const absl::Duration timeout = asked.value_or(options_.timeout);
    if (timeout <= absl::ZeroDuration() || timeout == absl::InfiniteDuration()) {
      return absl::InvalidArgumentError("timeout must be positive and finite");
    }
    return absl::Now() + timeout;
  }

  // An error, with done untouched, where the call cannot start.
  absl::Status Start(const Request& request, const CallOptions& options, Call::Done& done) {
    const absl::StatusOr<absl::Time> deadline = Deadline(options.timeout);
    if (!deadline.ok()) return deadline.status();
    const ResultBuffers buffers = {options.out, options.lse, options.weights};
    absl::StatusOr<EncodedRequest> encoded = EncodedRequest::Make(request, buffers, kMessageBytesMax);
    if (!encoded.ok()) return encoded.status();
    Call::Params params = {
        *std::move(encoded), buffers,        options.request_id.empty() ? NewRequestId() : options.request_id,
        options.traceparent, options_.retry, *deadline};
    const std::shared_ptr<CancelToken::State> token = options.cancel ? options.cancel->state_ : nullptr;
    // Known only once the call is made; read only once it has started.
    auto key = std::make_shared<const Call*>(nullptr);
    auto call =
        std::make_shared<Call>(&channels_, std::move(params),
                               [this, token, key, done = std::move(done)](absl::StatusOr<Response> response) {
                                 if (token != nullptr) token->Remove(*key);
                                 done(std::move(response));
                                 std::shared_ptr<Call> ended;  // freed outside the lock
                                 absl::MutexLock lock(&mutex_);
                                 const auto it = in_flight_.find(*key);
                                 ended = std::move(it->second);
                                 in_flight_.erase(it);
                               });
    *key = call.get();
    {
      absl::MutexLock lock(&mutex_);
      in_flight_.emplace(call.get(), call);
    }
    if (token != nullptr && !token->Add(call)) call->Cancel();
    call->Start();
    return absl::OkStatus();
  }

  // Context of a call that describes the server.
  absl::Status Prepare(grpc::ClientContext& context, std::optional<absl::Duration> timeout) const {
    const absl::StatusOr<absl::Time> deadline = Deadline(timeout);
    if (!deadline.ok()) return deadline.status();
    context.set_deadline(absl::ToChronoTime(*deadline));
    const std::string token = channels_.token();
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    return absl::OkStatus();
  }
  const ChannelSet& channels() const { return channels_; }

 private:
  const ClientOptions options_;
  ChannelSet channels_;
  absl::Mutex mutex_;
  absl::flat_hash_map<const Call*, std::shared_ptr<Call>> in_flight_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(absl::string_view target, ClientOptions options) {
  absl::Status status = CheckOptions(target, options);
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<TokenSource>> token = TokenSource::Make(options);
  if (!token.ok()) return token.status();
  pid_t none = 0;
  grpc_process.compare_exchange_strong(none, getpid());
  status = CheckNotForked();
  if (!status.ok()) return status;
  return std::unique_ptr<Client>(
      new Client(std::make_unique<Impl>(target, std::move(options), *std::move(token))));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  // In a forked child gRPC cannot be shut down either: its threads are not here. The memory is a copy.
  if (!CheckNotForked().ok()) (void)impl_.release();
}

void Client::AttendAsync(const Request& request, const CallOptions& options,
                         std::function<void(absl::StatusOr<Response>)> done) {
  absl::Status status = CheckNotForked();
  if (status.ok()) status = impl_->Start(request, options, done);
  if (!status.ok()) done(std::move(status));
}

absl::StatusOr<Response> Client::Attend(const Request& request, const CallOptions& options) {
  absl::Notification ended;
  absl::StatusOr<Response> result;
  AttendAsync(request, options, [&](absl::StatusOr<Response> response) {
    result = std::move(response);
    ended.Notify();
  });
  ended.WaitForNotification();
  return result;
}

absl::StatusOr<ServerInfo> Client::GetServerInfo(std::optional<absl::Duration> timeout) {
  absl::Status status = CheckNotForked();
  grpc::ClientContext context;
  if (status.ok()) status = impl_->Prepare(context, timeout);
  if (!status.ok()) return status;
  v1::GetServerInfoResponse response;
  status = FromGrpcStatus(
      v1::InfoService::NewStub(impl_->channels().admin())->GetServerInfo(&context, {}, &response));
  if (!status.ok()) return status;
  ServerInfo info;
  info.version = response.version();
  for (const auto& d : response.devices()) {
    info.devices.push_back({d.name(), d.kind(), d.model(), d.uuid(), d.memory_bytes(), d.slots()});
  }
  for (const auto& k : response.kernels()) {
    ServerInfo::KernelSupport support = {
        static_cast<Kernel>(k.kernel()), {}, k.head_dim_multiple(), k.head_dim_max(), k.all_weights()};
    for (const int dtype : k.dtypes()) support.dtypes.push_back(static_cast<DataType>(dtype));
    info.kernels.push_back(std::move(support));
  }
  const auto& l = response.limits();
  info.limits = {l.request_bytes_max(), l.response_bytes_max(), l.queue_requests_max(),
                 l.host_bytes_max(),    l.device_bytes_max(),   l.batch_requests_max()};
  return info;
}

absl::Status Client::CheckHealth(absl::string_view service, std::optional<absl::Duration> timeout) {
  absl::Status status = CheckNotForked();
  grpc::ClientContext context;
  if (status.ok()) status = impl_->Prepare(context, timeout);
  if (!status.ok()) return status;
  // grpc.health.v1.HealthCheckRequest { string service = 1; } by hand: gRPC installs no C++ for it.
  if (service.size() > 127) return absl::InvalidArgumentError("the service's name is too long");
  std::string message;
  if (!service.empty())
    message = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  absl::Notification ended;
  grpc::GenericStub stub(impl_->channels().admin());
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](const grpc::Status& ending) {
                   status = FromGrpcStatus(ending);
                   ended.Notify();
                 });
  ended.WaitForNotification();
  if (!status.ok()) return status;
  // HealthCheckResponse { ServingStatus status = 1; }, where SERVING is 1.
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok()) return absl::InternalError("unreadable health response");
  const absl::string_view bytes(reinterpret_cast<const char*>(answer.begin()), answer.size());
  if (bytes == "\x08\x01") return absl::OkStatus();
  return absl::UnavailableError(bytes == "\x08\x02" ? "NOT_SERVING" : "the health status is unknown");
}

}  // namespace client
}  // namespace attend
