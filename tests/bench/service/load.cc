#include "tests/bench/service/load.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace attend::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct OneCall {
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  Clock::time_point start;
};

// One connection, driven by one thread through its completion queue.
void Drive(const Load& load, int in_flight, Clock::time_point start, const std::atomic<bool>& stop,
           LoadResult* result) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(load.target, grpc::InsecureChannelCredentials(), arguments));
  const grpc::Slice slice(load.request.data(), load.request.size(), grpc::Slice::STATIC_SLICE);
  grpc::CompletionQueue queue;
  const auto start_call = [&] {
    auto* call = new OneCall;
    call->start = Clock::now();
    // As Attend's clients do.
    call->context.AddMetadata("attend-request-bytes", std::to_string(load.request.size()));
    call->reader = stub.PrepareUnaryCall(&call->context, load.method, grpc::ByteBuffer(&slice, 1), &queue);
    call->reader->StartCall();
    call->reader->Finish(&call->reply, &call->status, call);
  };
  for (int i = 0; i < in_flight; ++i) start_call();
  int open = in_flight;
  void* tag = nullptr;
  bool ok = false;
  while (open > 0 && queue.Next(&tag, &ok)) {
    std::unique_ptr<OneCall> call(static_cast<OneCall*>(tag));
    if (!call->status.ok()) {
      std::fprintf(stderr, "call failed: %d %s\n", call->status.error_code(),
                   call->status.error_message().c_str());
      std::exit(1);
    }
    result->reply_bytes = static_cast<int64_t>(call->reply.Length());
    if (stop) {
      --open;
      continue;
    }
    ++result->calls;
    result->seconds = Since(start);
    result->latency.push_back(Since(call->start));
    start_call();
  }
}

}  // namespace

LoadResult RunLoad(const Load& load) {
  std::vector<LoadResult> parts(static_cast<size_t>(load.connections));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const Clock::time_point start = Clock::now();
  for (int c = 0; c < load.connections; ++c) {
    const int share = load.in_flight / load.connections + (c < load.in_flight % load.connections ? 1 : 0);
    threads.emplace_back([&load, &stop, start, share, part = &parts[static_cast<size_t>(c)]] {
      Drive(load, share, start, stop, part);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(load.seconds));
  stop = true;
  LoadResult total;
  for (std::thread& thread : threads) thread.join();
  for (LoadResult& part : parts) {
    total.calls += part.calls;
    total.seconds = std::max(total.seconds, part.seconds);
    total.reply_bytes = std::max(total.reply_bytes, part.reply_bytes);
    total.latency.insert(total.latency.end(), part.latency.begin(), part.latency.end());
  }
  std::sort(total.latency.begin(), total.latency.end());
  return total;
}

}  // namespace attend::bench
