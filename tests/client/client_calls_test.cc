// When a client tries again, waits, ends and shares, against an ordinary server.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "attend/client.h"
#include "client/cli/reference.h"
#include "tests/client/client_fixture.h"
#include "tests/client/test_server.h"

namespace attend {
namespace {

using testing::ExpectNear;
using ::testing::HasSubstr;
using testing::Inputs;
using ::testing::IsEmpty;
using testing::NewClient;
using ::testing::SizeIs;
using testing::TestServer;

grpc::Status Unavailable() { return {grpc::StatusCode::UNAVAILABLE, "draining"}; }

TEST(Client, TriesAgainWhenUnavailable) {
  TestServer server;
  server.FailNext({{Unavailable(), ""}, {Unavailable(), ""}});
  Inputs inputs({1, 2, 300, 8});
  const auto response = NewClient(server.address())->Attend(inputs.request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->attempts, 3);
  ExpectNear(response->out.as<float>(), cli::Reference(inputs.request)->out);
  const auto calls = server.calls();
  ASSERT_THAT(calls, SizeIs(3));
  EXPECT_EQ(calls[0].request.q_data(), calls[2].request.q_data());
  EXPECT_EQ(calls[0].request_id, calls[2].request_id);
}

TEST(Client, GivesUpAfterTheLastAttempt) {
  TestServer server;
  server.FailNext(std::deque<testing::Failure>(9, {Unavailable(), ""}));
  Inputs inputs({1, 1, 4, 8});
  const auto response = NewClient(server.address())->Attend(inputs.request);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(response.status().message()), HasSubstr("draining (attempt 4)"));
  EXPECT_THAT(server.calls(), SizeIs(4));
}

grpc::Status Exhausted(bool retry_info) {
  google::rpc::Status details;
  details.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(3'000'000);
  if (retry_info) details.add_details()->PackFrom(info);
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", details.SerializeAsString()};
}

TEST(Client, TriesAgainWhenExhaustedOnlyIfTheServerSaysWhen) {
  TestServer server;
  Inputs inputs({1, 1, 4, 8});
  const auto client = NewClient(server.address());
  server.FailNext({{Exhausted(true), ""}});
  EXPECT_EQ(client->Attend(inputs.request)->attempts, 2);
  server.FailNext({{Exhausted(false), "2"}});
  EXPECT_EQ(client->Attend(inputs.request)->attempts, 2);
  server.FailNext({{Exhausted(false), ""}});
  EXPECT_EQ(client->Attend(inputs.request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Client, DoesNotTryAgainWhenPushedBackForGood) {
  TestServer server;
  server.FailNext({{Unavailable(), "-1"}});
  Inputs inputs({1, 1, 4, 8});
  EXPECT_FALSE(NewClient(server.address())->Attend(inputs.request).ok());
  EXPECT_THAT(server.calls(), SizeIs(1));
}

TEST(Client, DoesNotWaitBeyondTheDeadlineToTryAgain) {
  TestServer server;
  server.FailNext({{Unavailable(), "60000"}});
  Inputs inputs({1, 1, 4, 8});
  CallOptions options;
  options.timeout = absl::Seconds(30);
  const auto response = NewClient(server.address())->Attend(inputs.request, options);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
}

TEST(Client, TriesAgainAcrossAServerThatStartsLate) {
  std::string address;
  { address = TestServer().address(); }
  ClientOptions options;
  options.retry.attempts_max = 50;
  const auto client = NewClient(address, options);
  Inputs inputs({1, 1, 4, 8});
  absl::Notification ended;
  absl::StatusOr<Response> response;
  client->AttendAsync(inputs.request, {}, [&](absl::StatusOr<Response> r) {
    response = std::move(r);
    ended.Notify();
  });
  absl::SleepFor(absl::Milliseconds(50));
  TestServer server(address);
  ended.WaitForNotification();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_GT(response->attempts, 1);
}

TEST(Client, ADeadlineHoldsAlwaysAndReachesTheServer) {
  TestServer server;
  server.Hold(true);
  ClientOptions options;
  options.timeout = absl::Milliseconds(50);
  const auto client = NewClient(server.address(), options);
  Inputs inputs({1, 1, 4, 8});
  EXPECT_EQ(client->Attend(inputs.request).status().code(), absl::StatusCode::kDeadlineExceeded);
  CallOptions call;
  call.timeout = absl::InfiniteDuration();
  EXPECT_EQ(client->Attend(inputs.request, call).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Client, CancelEndsTheCallAndTheServersWork) {
  TestServer server;
  server.Hold(true);
  const auto client = NewClient(server.address());
  Inputs inputs({1, 1, 400, 8});
  CallOptions options;
  options.cancel.emplace();
  absl::Notification ended;
  absl::StatusOr<Response> response;
  client->AttendAsync(inputs.request, options, [&](absl::StatusOr<Response> r) {
    response = std::move(r);
    ended.Notify();
  });
  while (server.calls().empty()) absl::SleepFor(absl::Milliseconds(1));
  options.cancel->Cancel();
  ended.WaitForNotification();
  EXPECT_EQ(response.status().code(), absl::StatusCode::kCancelled);
  while (server.cancelled_calls() == 0) absl::SleepFor(absl::Milliseconds(1));
  // A token stays cancelled.
  EXPECT_EQ(client->Attend(inputs.request, options).status().code(), absl::StatusCode::kCancelled);
}

TEST(Client, CancelEndsTheWaitBetweenAttempts) {
  TestServer server;
  server.FailNext({{Unavailable(), "50000"}});
  const auto client = NewClient(server.address());
  Inputs inputs({1, 1, 4, 8});
  CallOptions options;
  options.cancel.emplace();
  std::thread canceller([&] {
    while (server.calls().empty()) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(20));
    options.cancel->Cancel();
  });
  EXPECT_EQ(client->Attend(inputs.request, options).status().code(), absl::StatusCode::kCancelled);
  canceller.join();
}

TEST(Client, DestructionCancelsWhatIsInFlight) {
  TestServer server;
  server.Hold(true);
  auto client = NewClient(server.address());
  Inputs inputs({1, 1, 4, 8});
  absl::Status status;
  client->AttendAsync(inputs.request, {}, [&](absl::StatusOr<Response> r) { status = r.status(); });
  while (server.calls().empty()) absl::SleepFor(absl::Milliseconds(1));
  client.reset();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

// S21
TEST(Client, ManyThreadsShareOneClient) {
  TestServer server;
  const auto client = NewClient(server.address());
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&client, t] {
      for (unsigned i = 0; i < 10; ++i) {
        Inputs inputs({1, 1, 5 + t, 8}, 100 * t + i);
        const auto response = client->Attend(inputs.request);
        ASSERT_TRUE(response.ok()) << response.status();
        ExpectNear(response->out.as<float>(), cli::Reference(inputs.request)->out);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Client, ManyAsyncCallsAtOnce) {
  TestServer server;
  const auto client = NewClient(server.address());
  Inputs inputs({1, 1, 64, 8});
  const auto want = cli::Reference(inputs.request);
  absl::BlockingCounter left(200);
  for (int i = 0; i < 200; ++i) {
    client->AttendAsync(inputs.request, {}, [&](absl::StatusOr<Response> response) {
      EXPECT_TRUE(response.ok()) << response.status();
      if (response.ok()) ExpectNear(response->out.as<float>(), want->out);
      left.DecrementCount();
    });
  }
  left.Wait();
}

// S21
TEST(Client, SaysAtOnceThatItDoesNotWorkAcrossFork) {
  TestServer server;
  auto client = NewClient(server.address());
  Inputs inputs({1, 1, 4, 8});
  ASSERT_TRUE(client->Attend(inputs.request).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool call = client->Attend(inputs.request).status().code() == absl::StatusCode::kFailedPrecondition;
    const bool create =
        Client::Create("localhost:1").status().code() == absl::StatusCode::kFailedPrecondition;
    client.reset();  // must not hang
    _exit(call && create ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(client->Attend(inputs.request).ok());
}

TEST(Client, RefusesOptionsThatMakeNoClient) {
  EXPECT_FALSE(Client::Create("").ok());
  ClientOptions options;
  options.connections = 0;
  EXPECT_FALSE(Client::Create("localhost:1", options).ok());
  options = {};
  options.timeout = absl::InfiniteDuration();
  EXPECT_FALSE(Client::Create("localhost:1", options).ok());
}

TEST(Client, ReachesUnixSockets) {
  const std::string path = absl::StrCat("unix:/tmp/attend-client-test-", getpid(), ".sock");
  TestServer server(path);
  Inputs inputs({1, 1, 4, 8});
  EXPECT_TRUE(NewClient(path)->Attend(inputs.request).ok());
}

TEST(Client, CallsGoToServersThatServeOnly) {
  TestServer draining, serving;
  draining.SetServing(false);
  const auto client = NewClient(absl::StrCat("ipv4:", draining.address(), ",", serving.address()));
  Inputs inputs({1, 1, 4, 8});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(client->Attend(inputs.request).ok());
  EXPECT_THAT(draining.calls(), IsEmpty());
  EXPECT_THAT(serving.calls(), SizeIs(6));
}

// S18
TEST(Client, TakesServersInTurn) {
  TestServer one, two;
  const auto client = NewClient(absl::StrCat("ipv4:", one.address(), ",", two.address()));
  Inputs inputs({1, 1, 4, 8});
  for (int i = 0; i < 200 && (one.calls().empty() || two.calls().empty()); ++i) {
    EXPECT_TRUE(client->Attend(inputs.request).ok());
  }
  EXPECT_FALSE(one.calls().empty());
  EXPECT_FALSE(two.calls().empty());
}

// A server that opens every window and then reads no more than the first bytes of each connection.
class StalledServer {
 public:
  StalledServer() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int peer = accept(listener_, nullptr, nullptr); peer >= 0;
           peer = accept(listener_, nullptr, nullptr)) {
        // SETTINGS with SETTINGS_INITIAL_WINDOW_SIZE 2^31 - 1, and WINDOW_UPDATE of the connection to match.
        const unsigned char frames[] = {0,    0, 6, 4, 0, 0, 0, 0, 0, 0, 4,    0x7f, 0xff, 0xff,
                                        0xff, 0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0,    0};
        EXPECT_EQ(write(peer, frames, sizeof(frames)), static_cast<ssize_t>(sizeof(frames)));
        peers_.push_back(peer);
      }
    });
  }
  ~StalledServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    for (const int peer : peers_) close(peer);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int listener_ = -1;
  int port_ = 0;
  std::vector<int> peers_;
  std::thread thread_;
};

// The caller may free its tensors when the call has ended, though gRPC was in the middle of writing them.
TEST(Client, ADeadlineHoldsAgainstAServerThatStopsReading) {
  StalledServer server;
  ClientOptions options;
  options.health_check = false;
  options.stall_timeout = absl::Milliseconds(500);
  const auto client = NewClient(server.address(), options);
  auto memory = std::make_unique<std::vector<float>>(64 << 20 >> 2, 1.0f);
  Request request;
  request.q = request.k = request.v = {DataType::kFp32, {1, 1, (64 << 20 >> 2) / 8, 8}, memory->data()};
  CallOptions call;
  call.timeout = absl::Milliseconds(300);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client->Attend(request, call).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  memory.reset();
  absl::SleepFor(absl::Milliseconds(50));  // a write that still reads it would be seen by a sanitizer
}

}  // namespace
}  // namespace attend
