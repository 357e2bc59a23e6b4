// An ordinary gRPC server of attend.v1 in this process: it answers with the float64 reference, and fails as
// it is told to. What the client does against it, it does against any server.
#ifndef ATTEND_TESTS_CLIENT_TEST_SERVER_H_
#define ATTEND_TESTS_CLIENT_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "attend/v1/attention.grpc.pb.h"
#include "attend/v1/info.grpc.pb.h"

namespace attend::testing {

// What the server saw of one call.
struct SeenCall {
  v1::AttendRequest request;
  std::string request_id, authorization, traceparent, announced_bytes;
};

// What to answer instead of attention.
struct Failure {
  grpc::Status status;
  std::string pushback_ms;  // trailer grpc-retry-pushback-ms; empty: none
};

class TestServer final : public v1::AttentionService::Service, public v1::InfoService::Service {
 public:
  // Listens on `address`, with port 0 on any port.
  explicit TestServer(const std::string& address = "127.0.0.1:0");
  ~TestServer() override;

  // "127.0.0.1:port", or the address as given.
  const std::string& address() const { return address_; }
  // The next calls fail so, one each.
  void FailNext(std::deque<Failure> failures);
  // Calls wait until this is lifted, or until they are cancelled.
  void Hold(bool hold);
  // Changes each answer before it is sent.
  void set_tamper(std::function<void(v1::AttendResponse&)> tamper);
  void SetServing(bool serving);
  std::vector<SeenCall> calls();
  int64_t cancelled_calls();

 private:
  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::deque<Failure> failures_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<SeenCall> calls_ ABSL_GUARDED_BY(mutex_);
  std::function<void(v1::AttendResponse&)> tamper_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_CLIENT_TEST_SERVER_H_
