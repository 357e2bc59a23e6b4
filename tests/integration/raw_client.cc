#include "tests/integration/raw_client.h"

#include <chrono>

#include "absl/synchronization/notification.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/slice.h"

namespace attend::integration {

v1::AttendResponse RawReply::Parse() const {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (message.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  v1::AttendResponse response;
  if (!response.ParseFromString(bytes)) response.Clear();
  return response;
}

std::vector<server::Violation> RawReply::Violations() const {
  std::vector<server::Violation> violations;
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return violations;
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad;
    if (!detail.Is<google::rpc::BadRequest>() || !detail.UnpackTo(&bad)) continue;
    for (const auto& v : bad.field_violations()) violations.push_back({v.field(), v.description()});
  }
  return violations;
}

RawReply Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
              grpc::ClientContext* context, const std::string& method) {
  grpc::ClientContext own;
  if (context == nullptr) context = &own;
  if (context->deadline() == std::chrono::system_clock::time_point::max()) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  RawReply reply;
  absl::Notification ended;
  grpc::GenericStub(channel).UnaryCall(context, method, {}, &request, &reply.message,
                                       [&](const grpc::Status& status) {
                                         reply.status = status;
                                         ended.Notify();
                                       });
  ended.WaitForNotification();
  return reply;
}

v1::AttendRequest SimpleRequest(int64_t heads, int64_t length) {
  v1::AttendRequest request;
  for (v1::TensorSpec* spec : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    spec->set_dtype(v1::DATA_TYPE_FP16);
    for (const int64_t size : {int64_t{1}, heads, length, int64_t{64}}) spec->add_shape(size);
  }
  const auto bytes = static_cast<size_t>(heads * length * 64 * 2);
  request.mutable_q_data()->resize(bytes);
  request.mutable_k_data()->resize(bytes);
  request.mutable_v_data()->resize(bytes);
  return request;
}

std::string SmallMessage() { return SimpleRequest(1, 16).SerializeAsString(); }

}  // namespace attend::integration
