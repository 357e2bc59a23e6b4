#include "server/process/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpc_reflection_v1alpha/reflection.pb.h"
#include "server/error.h"
#include "server/process/small_call.h"
#include "server/wire/encoder.h"

namespace attend::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

void SetError(grpc::StatusCode code, const char* message, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

// The file and all that it imports.
void AddFiles(const FileDescriptor* file, std::set<const FileDescriptor*>* seen,
              ServerReflectionResponse* response) {
  if (!seen->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) AddFiles(file->dependency(i), seen, response);
}

void SetFiles(const FileDescriptor* file, ServerReflectionResponse* response) {
  if (file == nullptr)
    return SetError(grpc::StatusCode::NOT_FOUND, "the server knows none of this name", response);
  std::set<const FileDescriptor*> seen;
  AddFiles(file, &seen, response);
}

const FileDescriptor* FileOfExtension(const std::string& type, int number) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* message = pool.FindMessageTypeByName(type);
  const auto* extension = message == nullptr ? nullptr : pool.FindExtensionByNumber(message, number);
  return extension == nullptr ? nullptr : extension->file();
}

void SetExtensionNumbers(const std::string& type, ServerReflectionResponse* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* message = pool.FindMessageTypeByName(type);
  if (message == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, "the server knows no type of this name", response);
  }
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type);
  for (const auto* extension : extensions) numbers->add_extension_number(extension->number());
}

}  // namespace

// One call: an answer to each request, one after the other, until the caller has no more.
class ReflectionService::Stream final : public GenericCall::Handler, private CallRegistry::Member {
 public:
  Stream(ReflectionService* service, GenericCall* call, CallRegistry* registry, absl::Duration idle_max)
      : service_(service), call_(call), registry_(registry), idle_max_(idle_max) {}

 private:
  enum class Phase { kReading, kWriting, kFinished };

  void Start() override {
    registered_ = registry_->Add(this, &registration_);
    if (registered_) {
      Read();
    } else if (Take(Phase::kFinished)) {
      call_->Finish(ToGrpcStatus(Unavailable()));
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (Take(Phase::kFinished)) call_->Finish(grpc::Status::OK);
      return;
    }
    const absl::StatusOr<std::string> request = ToSmallString(&message_);
    if (!request.ok()) {
      if (Take(Phase::kFinished)) call_->Finish(ToGrpcStatus(request.status()));
      return;
    }
    reply_ = ToByteBuffer(service_->Answer(*request));
    if (Take(Phase::kWriting)) call_->StartWrite(reply_);
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      Read();
    } else if (Take(Phase::kFinished)) {
      call_->Finish(grpc::Status::OK);  // the caller is gone
    }
  }

  void OnCancel() override {}  // ends the read or the write that is pending

  void OnDone() override {
    if (registered_) registry_->Remove(registration_);
    delete this;
  }

  void OnSweep(absl::Time now) override {
    Phase phase;
    {
      absl::MutexLock lock(&mutex_);
      phase = phase_;
      if (!service_->shut_down_ && now - since_ < idle_max_) return;
      if (phase == Phase::kReading) phase_ = Phase::kFinished;
    }
    if (phase == Phase::kReading) call_->Finish(ToGrpcStatus(Unavailable()));
    // Finish has to wait for the write, which a caller that does not read may hold up for ever.
    if (phase == Phase::kWriting) call_->context().TryCancel();
  }

  void Read() {
    if (Take(Phase::kReading)) call_->StartRead(&message_);
  }

  // False where the call has finished.
  bool Take(Phase phase) {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kFinished) return false;
    phase_ = phase;
    since_ = absl::Now();
    return true;
  }

  static absl::Status Unavailable() {
    return ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING",
                           "the call was idle for too long, or the server takes no more of them");
  }

  ReflectionService* const service_;
  GenericCall* const call_;
  CallRegistry* const registry_;
  const absl::Duration idle_max_;
  bool registered_ = false;
  CallRegistry::Handle registration_;
  grpc::ByteBuffer message_, reply_;
  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kReading;
  absl::Time since_ ABSL_GUARDED_BY(mutex_) = absl::Now();
};

ReflectionService::ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

bool ReflectionService::IsMethod(absl::string_view method) {
  return method == "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" ||
         method == "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
}

GenericCall::Handler* ReflectionService::Handle(GenericCall* call, CallRegistry* registry,
                                                absl::Duration idle_max) {
  return new Stream(this, call, registry, idle_max);
}

std::string ReflectionService::Answer(const std::string& bytes) const {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionRequest request;
  ServerReflectionResponse response;
  const bool parsed = request.ParseFromString(bytes);
  *response.mutable_original_request() = request;
  response.set_valid_host(request.host());
  if (!parsed) {
    SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed", &response);
    return response.SerializeAsString();
  }
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      SetFiles(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFiles(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      SetFiles(FileOfExtension(request.file_containing_extension().containing_type(),
                               request.file_containing_extension().extension_number()),
               &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), &response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services_)
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request asks for nothing that is known", &response);
  }
  return response.SerializeAsString();
}

}  // namespace attend::server
