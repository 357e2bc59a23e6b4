#include "tests/client/test_server.h"

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "attend/types.h"
#include "client/cli/numbers.h"
#include "client/cli/reference.h"

namespace attend::testing {
namespace {

TensorView View(const v1::TensorSpec& spec, const std::string& data) {
  return {static_cast<DataType>(spec.dtype()), {spec.shape().begin(), spec.shape().end()}, data.data()};
}

Request ToRequest(const v1::AttendRequest& r) {
  Request request;
  request.q = View(r.q(), r.q_data());
  request.k = View(r.k(), r.k_data());
  request.v = View(r.v(), r.v_data());
  if (r.layout() != 0) request.layout = static_cast<Layout>(r.layout());
  if (r.kernel() != 0) request.kernel = static_cast<Kernel>(r.kernel());
  if (r.causal() != 0) request.causal = static_cast<Causal>(r.causal());
  if (r.has_scale()) request.scale = r.scale();
  if (r.has_softcap()) request.softcap = r.softcap();
  if (r.has_window_left()) request.window_left = r.window_left();
  if (r.has_window_right()) request.window_right = r.window_right();
  request.q_lengths = {r.q_lengths().begin(), r.q_lengths().end()};
  request.kv_lengths = {r.kv_lengths().begin(), r.kv_lengths().end()};
  if (r.has_bias()) request.bias = View(r.bias(), r.bias_data());
  if (r.has_mask()) request.mask = View(r.mask(), r.mask_data());
  if (r.has_alibi_slopes()) request.alibi_slopes = View(r.alibi_slopes(), r.alibi_slopes_data());
  if (r.has_sinks()) request.sinks = View(r.sinks(), r.sinks_data());
  request.return_lse = r.return_lse();
  request.return_weights = r.return_weights();
  request.weight_rows = {r.weight_rows().begin(), r.weight_rows().end()};
  return request;
}

void Fill(const std::vector<double>& values, DataType dtype, const Shape& shape, v1::TensorSpec* spec,
          std::string* data) {
  spec->set_dtype(static_cast<v1::DataType>(dtype));
  spec->mutable_shape()->Add(shape.begin(), shape.end());
  data->resize(values.size() * static_cast<size_t>(SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    cli::FromDouble(values[i], dtype, data->data(), static_cast<int64_t>(i));
  }
}

std::string Metadata(const grpc::ServerContext& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  return it == context.client_metadata().end() ? "" : std::string(it->second.data(), it->second.size());
}

}  // namespace

TestServer::TestServer(const std::string& address) : address_(address) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  // Else its threads may wait for 10 s before they see a shutdown.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::CQ_TIMEOUT_MSEC, 100);
  builder.RegisterService(static_cast<v1::AttentionService::Service*>(this));
  builder.RegisterService(static_cast<v1::InfoService::Service*>(this));
  server_ = builder.BuildAndStart();
  if (absl::EndsWith(address, ":0")) address_ = absl::StrCat(address.substr(0, address.size() - 1), port);
  SetServing(true);
}

TestServer::~TestServer() {
  Hold(false);
  server_->Shutdown(std::chrono::system_clock::now());
}

void TestServer::FailNext(std::deque<Failure> failures) {
  absl::MutexLock lock(&mutex_);
  failures_ = std::move(failures);
}

void TestServer::Hold(bool hold) {
  absl::MutexLock lock(&mutex_);
  hold_ = hold;
}

void TestServer::set_tamper(std::function<void(v1::AttendResponse&)> tamper) {
  absl::MutexLock lock(&mutex_);
  tamper_ = std::move(tamper);
}

void TestServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
  server_->GetHealthCheckService()->SetServingStatus("attend.v1.AttentionService", serving);
}

std::vector<SeenCall> TestServer::calls() {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

int64_t TestServer::cancelled_calls() {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

grpc::Status TestServer::Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                                v1::AttendResponse* response) {
  SeenCall seen = {*request, Metadata(*context, "x-request-id"), Metadata(*context, "authorization"),
                   Metadata(*context, "traceparent"), Metadata(*context, "attend-request-bytes")};
  context->AddInitialMetadata("x-request-id", seen.request_id);
  std::function<void(v1::AttendResponse&)> tamper;
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(seen));
    if (!failures_.empty()) {
      const Failure failure = failures_.front();
      failures_.pop_front();
      if (!failure.pushback_ms.empty())
        context->AddTrailingMetadata("grpc-retry-pushback-ms", failure.pushback_ms);
      return failure.status;
    }
    while (hold_ && !context->IsCancelled()) {
      mutex_.AwaitWithTimeout(absl::Condition(
                                  +[](bool* hold) { return !*hold; }, &hold_),
                              absl::Milliseconds(5));
    }
    if (context->IsCancelled()) {
      ++cancelled_;
      return grpc::Status::CANCELLED;
    }
    tamper = tamper_;
  }
  const Request view = ToRequest(*request);
  const absl::StatusOr<cli::ReferenceResult> result = cli::Reference(view);
  if (!result.ok()) return {grpc::StatusCode::INVALID_ARGUMENT, std::string(result.status().message())};
  const ResponseShapes shapes = ExpectedShapes(view);
  Fill(result->out, view.q.dtype, *shapes.out, response->mutable_out(), response->mutable_out_data());
  if (shapes.lse)
    Fill(result->lse, DataType::kFp32, *shapes.lse, response->mutable_lse(), response->mutable_lse_data());
  if (shapes.weights) {
    Fill(result->weights, DataType::kFp32, *shapes.weights, response->mutable_weights(),
         response->mutable_weights_data());
  }
  v1::Report& report = *response->mutable_report();
  report.set_kernel(view.kernel == Kernel::kAuto ? v1::KERNEL_FLASH : static_cast<v1::Kernel>(view.kernel));
  report.set_device("reference");
  report.set_batch_requests(1);
  if (tamper) tamper(*response);
  return grpc::Status::OK;
}

grpc::Status TestServer::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                       v1::GetServerInfoResponse* response) {
  response->set_version("1.2.3");
  v1::Device& device = *response->add_devices();
  device.set_name("cpu");
  device.set_kind("cpu");
  device.set_model("reference");
  device.set_slots(2);
  v1::KernelSupport& kernel = *response->add_kernels();
  kernel.set_kernel(v1::KERNEL_FLASH);
  kernel.add_dtypes(v1::DATA_TYPE_FP32);
  kernel.set_head_dim_max(256);
  response->mutable_limits()->set_request_bytes_max(1 << 30);
  return grpc::Status::OK;
}

}  // namespace attend::testing
