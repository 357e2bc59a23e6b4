// The peer of the service benchmark: what gRPC C++ itself can carry. A raw callback method that copies its
// request once into a reused buffer and answers with the first reply-bytes of it. Nothing is parsed.
//
//   raw_echo REPLY_BYTES     prints its port, serves until it is killed
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "attend/v1/attention.grpc.pb.h"

namespace {

// Buffers that have been touched before, so that neither server pays for page faults.
class Buffers {
 public:
  struct Buffer {
    Buffers* owner;
    std::vector<char> bytes;
  };
  Buffer* Take(size_t size) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        Buffer* buffer = free_.back();
        free_.pop_back();
        if (buffer->bytes.size() < size) buffer->bytes.resize(size);
        return buffer;
      }
    }
    return new Buffer{this, std::vector<char>(size)};
  }
  static void Give(void* pointer) {
    auto* buffer = static_cast<Buffer*>(pointer);
    std::lock_guard<std::mutex> lock(buffer->owner->mutex_);
    buffer->owner->free_.push_back(buffer);
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer*> free_;
};

using RawService =
    attend::v1::AttentionService::WithRawCallbackMethod_Attend<attend::v1::AttentionService::Service>;

class Echo final : public RawService {
 public:
  explicit Echo(size_t reply_bytes) : reply_bytes_(reply_bytes) {}

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override {
    std::vector<grpc::Slice> slices;
    grpc::Status status = request->Dump(&slices);
    Buffers::Buffer* buffer = buffers_.Take(std::max(request->Length(), reply_bytes_));
    const_cast<grpc::ByteBuffer*>(request)->Clear();
    size_t at = 0;
    for (grpc::Slice& slice : slices) {
      std::memcpy(buffer->bytes.data() + at, slice.begin(), slice.size());
      at += slice.size();
      slice = grpc::Slice();
    }
    const grpc::Slice reply(buffer->bytes.data(), reply_bytes_, &Buffers::Give, buffer);
    *response = grpc::ByteBuffer(&reply, 1);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

 private:
  const size_t reply_bytes_;
  Buffers buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Echo echo(std::strtoull(argv[1], nullptr, 10));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}
