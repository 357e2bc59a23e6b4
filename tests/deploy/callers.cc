#include "tests/deploy/callers.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/integration/server_metrics.h"

namespace attend::deploy {
namespace {

// The value of a series that is there from the start.
int64_t Count(const integration::ServerProcess& server, const std::string& series) {
  const double value = integration::Metric(server.metrics_port(), series);
  return std::isnan(value) ? -1 : static_cast<int64_t>(value);
}

}  // namespace

absl::Status CallOnce(Client& client, int64_t q_tokens, int64_t kv_tokens, float value) {
  const Shape q_shape = {1, 2, q_tokens, 64}, kv_shape = {1, 2, kv_tokens, 64};
  std::mt19937 random(static_cast<uint32_t>(q_tokens * kv_tokens));
  std::vector<float> q(static_cast<size_t>(2 * q_tokens * 64)), k(static_cast<size_t>(2 * kv_tokens * 64));
  const std::vector<float> v(k.size(), value);
  for (std::vector<float>* tensor : {&q, &k}) {
    for (float& f : *tensor) f = static_cast<float>(random() % 2001) / 500.0f - 2.0f;
  }
  Request request;
  request.q = {DataType::kFp32, q_shape, q.data()};
  request.k = {DataType::kFp32, kv_shape, k.data()};
  request.v = {DataType::kFp32, kv_shape, v.data()};
  const absl::StatusOr<Response> response = client.Attend(request);
  if (!response.ok()) return response.status();
  for (const float out : response->out.as<float>()) {
    if (!(std::abs(out - value) <= 1e-5f * std::abs(value))) {
      return absl::DataLossError(absl::StrCat("answered ", out, " for ", value));
    }
  }
  return absl::OkStatus();
}

Callers::Callers(Client* client, int count) : client_(client) {
  for (int c = 0; c < count; ++c) threads_.emplace_back([this, c] { Run(c); });
}

void Callers::Stop() {
  stop_ = true;
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

void Callers::Run(int caller) {
  // Values of its own: an answer to another caller's request is seen.
  for (int64_t i = 1; !stop_; ++i) {
    const absl::Status status = CallOnce(*client_, 32, 48, static_cast<float>(caller * 1000 + i % 1000));
    if (status.ok()) {
      ++answered_;
    } else {
      absl::MutexLock lock(&mutex_);
      failures_.push_back(status);
    }
  }
}

std::vector<absl::Status> Callers::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

int64_t Answered(const integration::ServerProcess& server) {
  return Count(server, R"(grpc_server_handled_total{grpc_code="OK",grpc_method="Attend",)"
                       R"(grpc_service="attend.v1.AttentionService",grpc_type="unary"})");
}

int64_t Ended(const integration::ServerProcess& server) {
  return Count(server, "attend_request_seconds_count");
}

}  // namespace attend::deploy
