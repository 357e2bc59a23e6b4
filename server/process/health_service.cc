#include "server/process/health_service.h"

#include <grpc/health/v1/health.pb.h>

#include <optional>
#include <utility>
#include <vector>

#include "server/process/small_call.h"

namespace attend::server {
namespace {

absl::StatusOr<std::string> ServiceName(const std::string& bytes) {
  grpc::health::v1::HealthCheckRequest request;
  if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("the request cannot be parsed");
  return request.service();
}

std::string Response(HealthService::Status status) {
  grpc::health::v1::HealthCheckResponse response;
  response.set_status(static_cast<grpc::health::v1::HealthCheckResponse::ServingStatus>(status));
  return response.SerializeAsString();
}

}  // namespace

// One call of Watch: writes the status of its name at once and whenever it changes. What changes while a
// write is under way is written after it.
class HealthService::Watcher final : public GenericCall::Handler {
 public:
  Watcher(HealthService* service, GenericCall* call) : service_(service), call_(call) {}

  // With the service's lock.
  void Update() {
    if (finished_ || writing_) return;
    if (service_->shut_down_ || cancelled_) {
      finished_ = true;
      call_->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
      return;
    }
    if (!name_) return;
    const Status status = service_->StatusOf(*name_);
    if (written_ == status) return;
    writing_ = true;
    written_ = status;
    reply_ = ToByteBuffer(Response(status));
    call_->StartWrite(reply_);
  }

 private:
  // Listed before its request is there: a caller that never sends it holds up no shutdown.
  void Start() override {
    absl::MutexLock lock(&service_->mutex_);
    place_ = service_->watchers_.insert(service_->watchers_.end(), this);
    call_->StartRead(&message_);
    Update();
  }

  void OnReadDone(bool ok) override {
    absl::StatusOr<std::string> name = absl::CancelledError("the call ended without a request message");
    if (ok) {
      name = ToSmallString(&message_);
      if (name.ok()) name = ServiceName(*name);
    }
    absl::MutexLock lock(&service_->mutex_);
    if (finished_) return;
    if (!name.ok()) {
      finished_ = true;
      call_->Finish(grpc::Status(static_cast<grpc::StatusCode>(name.status().code()),
                                 std::string(name.status().message())));
      return;
    }
    name_ = *std::move(name);
    Update();
  }

  void OnWriteDone(bool) override {
    absl::MutexLock lock(&service_->mutex_);
    writing_ = false;
    Update();
  }

  void OnCancel() override {
    absl::MutexLock lock(&service_->mutex_);
    cancelled_ = true;
    Update();
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&service_->mutex_);
      service_->watchers_.erase(place_);
      --service_->watches_;
    }
    delete this;
  }

  HealthService* const service_;
  GenericCall* const call_;
  grpc::ByteBuffer message_, reply_;
  // All below by the service's lock.
  std::optional<std::string> name_;  // once it is known
  std::optional<Status> written_;
  bool writing_ = false, finished_ = false, cancelled_ = false;
  std::list<Watcher*>::iterator place_;
};

HealthService::HealthService(const std::vector<std::string>& names, int64_t watches_max)
    : watches_max_(watches_max) {
  for (const std::string& name : names) names_[name] = Status::kNotServing;
}

HealthService::~HealthService() = default;

void HealthService::Set(Status status) {
  absl::MutexLock lock(&mutex_);
  for (auto& [name, current] : names_) current = status;
  for (Watcher* const watcher : watchers_) watcher->Update();
}

void HealthService::Shutdown() {
  absl::MutexLock lock(&mutex_);
  shut_down_ = true;
  for (Watcher* const watcher : watchers_) watcher->Update();
}

absl::StatusOr<std::string> HealthService::Check(const std::string& request) {
  const absl::StatusOr<std::string> name = ServiceName(request);
  if (!name.ok()) return name.status();
  absl::MutexLock lock(&mutex_);
  const Status status = StatusOf(*name);
  if (status == Status::kServiceUnknown) return absl::NotFoundError("no service of this name");
  return Response(status);
}

GenericCall::Handler* HealthService::Watch(GenericCall* call) {
  {
    absl::MutexLock lock(&mutex_);
    if (watches_ >= watches_max_) return nullptr;
    ++watches_;
  }
  return new Watcher(this, call);
}

HealthService::Status HealthService::StatusOf(const std::string& name) {
  const auto found = names_.find(name);
  return found == names_.end() ? Status::kServiceUnknown : found->second;
}

}  // namespace attend::server
