// A call without types, step by step.
#ifndef ATTEND_TESTS_SERVER_PROCESS_RAW_CALL_H_
#define ATTEND_TESTS_SERVER_PROCESS_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

namespace attend::server {

// Each step waits for its end. A call that is not finished is cancelled.
class RawCall {
 public:
  // method: as "/package.Service/Method". Sends the headers.
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method);
  ~RawCall();
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  void Write(const std::string& bytes);
  void WritesDone();
  // The next message; nothing where the stream has ended.
  std::optional<std::string> Read();
  grpc::Status Finish();

 private:
  bool Step();

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_PROCESS_RAW_CALL_H_
