// Callers that stop in the middle, read slowly, come in crowds or vanish: each is held or ended within its
// limit, others are served, and nothing of them stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/process/fixture.h"
#include "tests/server/process/raw_http2.h"

namespace attend::server {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Everything that a call may hold has been given back.
::testing::AssertionResult IsIdle(const Server& server) {
  for (const char* series :
       {"attend_inflight_requests", "attend_receive_budget_bytes{kind=\"used\"}", "attend_receive_waiting",
        "attend_pinned_memory_bytes{kind=\"used\"}", "attend_queue_depth", "attend_queue_bytes"}) {
    if (!Eventually([&] { return MetricValue(server, series) == 0; })) {
      return ::testing::AssertionFailure() << series << " is " << MetricValue(server, series);
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(Limits, AHalfSentRequestEndsInTime) {
  ServerOptions options = TestOptions();
  options.receive_timeout = absl::Milliseconds(200);
  const auto server = StartServer(options);
  RawCaller caller(server->grpc_port());
  caller.SendHeaders();
  caller.SendMessage(MakeRequest(4, 16, 16, 64).SerializeAsString(), 1000);
  EXPECT_EQ(caller.ReadToEnd(5000), 0);
  EXPECT_EQ(MetricValue(*server, "attend_timeouts_total{stage=\"receive\"}"), 1);
  EXPECT_TRUE(IsIdle(*server));
}

TEST(Limits, ACallerThatDoesNotReadLosesItsReply) {
  ServerOptions options = TestOptions();
  options.send_timeout = absl::Milliseconds(300);
  const auto server = StartServer(options);
  RawCaller caller(server->grpc_port());
  caller.SendHeaders();
  // Weights make a reply of 1 MiB to a request of 48 KiB. No window is ever widened: 64 KiB arrive and the
  // rest waits.
  v1::AttendRequest request = MakeRequest(1, 512, 512, 8);
  request.set_return_weights(true);
  const std::string message = request.SerializeAsString();
  ASSERT_LT(message.size(), size_t{60000});
  caller.SendMessage(message, message.size());
  const int64_t data = caller.ReadToEnd(5000);
  EXPECT_GT(data, 0);
  EXPECT_LT(data, kMiB);
  EXPECT_EQ(MetricValue(*server, "attend_timeouts_total{stage=\"send\"}"), 1);
  EXPECT_TRUE(IsIdle(*server));
}

TEST(Limits, SlowSendersWaitInFlowControlAndOthersAreServed) {
  ServerOptions options = TestOptions();
  options.receive_bytes_max = 160 * kMiB;
  const auto server = StartServer(options);
  // Twenty callers announce 64 MiB each and send a little of it: two are let in, eighteen wait outside.
  std::vector<std::unique_ptr<RawCaller>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(std::make_unique<RawCaller>(server->grpc_port()));
    slow.back()->SendHeaders({{"attend-request-bytes", std::to_string(64 * kMiB)}});
    slow.back()->SendMessage(std::string(1 << 20, 'x'), 50000);
  }
  ASSERT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 20; }));
  EXPECT_EQ(MetricValue(*server, "attend_receive_budget_bytes{kind=\"used\"}"), 128 * kMiB);
  EXPECT_EQ(MetricValue(*server, "attend_receive_waiting"), 18);
  slow.resize(2);
  ASSERT_TRUE(Eventually([&] { return MetricValue(*server, "attend_receive_waiting") == 0; }));
  const auto channel = Connect(*server);
  EXPECT_TRUE(Attend(*channel, MakeRequest(1, 64, 64, 64)).ok());
  slow.clear();
  EXPECT_TRUE(IsIdle(*server));
}

TEST(Limits, WhoWaitsTooLongForAGrantIsTold) {
  ServerOptions options = TestOptions();
  options.receive_bytes_max = 64 * kMiB;  // an eighth of it for small requests
  options.grant_timeout = absl::Milliseconds(200);
  const auto server = StartServer(options);
  RawCaller slow(server->grpc_port());
  slow.SendHeaders({{"attend-request-bytes", std::to_string(56 * kMiB)}});
  ASSERT_TRUE(Eventually(
      [&] { return MetricValue(*server, "attend_receive_budget_bytes{kind=\"used\"}") == 56 * kMiB; }));
  const auto channel = Connect(*server);
  std::string pushback;
  const grpc::Status status =
      Attend(*channel, MakeRequest(1, 1, 1, 8), nullptr, {}, [&](const grpc::ClientContext& context) {
        const auto& trailers = context.GetServerTrailingMetadata();
        const auto found = trailers.find("grpc-retry-pushback-ms");
        if (found != trailers.end()) pushback.assign(found->second.data(), found->second.size());
      });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(pushback, "50");
  EXPECT_EQ(MetricValue(*server, "attend_rejected_total{reason=\"receive_budget\"}"), 1);
}

TEST(Limits, CallsInFlightAreBounded) {
  ServerOptions options = TestOptions();
  options.calls_max = 3;
  const auto server = StartServer(options);
  std::vector<std::unique_ptr<RawCaller>> callers;
  for (int i = 0; i < 3; ++i) {
    callers.push_back(std::make_unique<RawCaller>(server->grpc_port()));
    callers.back()->SendHeaders();
  }
  ASSERT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 3; }));
  const auto channel = Connect(*server);
  EXPECT_EQ(Attend(*channel, MakeRequest(1, 1, 1, 8)).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  callers.pop_back();
  EXPECT_TRUE(Eventually([&] { return Attend(*channel, MakeRequest(1, 1, 1, 8)).ok(); }));
}

TEST(Limits, HalfSentHttpRequestsKeepNoProbeWaiting) {
  const auto server = StartServer(TestOptions());
  std::vector<int> half_sent;
  for (int i = 0; i < 50; ++i) {
    half_sent.push_back(SendTo(server->http_port(), "GET /metrics HTTP/1.1\r\nHost: local", 10000));
    ASSERT_GE(half_sent.back(), 0);
  }
  // Four threads would need 25 s for those before it.
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz", 10000), ::testing::StartsWith("HTTP/1.1 200 "));
  for (const int fd : half_sent) {
    char said[1024];
    ssize_t read = 0;
    while ((read = recv(fd, said, sizeof(said), 0)) > 0) {
    }
    EXPECT_TRUE(read == 0 || errno == ECONNRESET) << "held for longer than its time";
    close(fd);
  }
}

TEST(Limits, TheWorkspaceOfTheCpuIsBounded) {
  ServerOptions options = TestOptions();
  options.device = "cpu";
  options.cpu_workspace_bytes_max = 4 * kMiB;
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  v1::AttendRequest request = MakeRequest(1, 2048, 2048, 8);
  EXPECT_TRUE(Attend(*channel, request).ok());  // FLASH keeps no scores
  request.set_kernel(v1::KERNEL_NAIVE);         // 16 MiB of them
  const grpc::Status status = Attend(*channel, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("4194304"));
  EXPECT_EQ(MetricValue(*server, "attend_rejected_total{reason=\"request_too_large\"}"), 1);
  EXPECT_EQ(MetricValue(*server, "attend_device_memory_bytes{device=\"cpu\",uuid=\"\",kind=\"pool\"}"),
            4 * kMiB);
}

// So that clients spread anew over the replicas there are.
TEST(Limits, AConnectionIsAskedToGoAtItsAge) {
  ServerOptions options = TestOptions();
  const auto lasting = StartServer(options);
  options.connection_age_max = absl::Milliseconds(100);
  const auto ending = StartServer(options);
  RawCaller stays(lasting->grpc_port()), goes(ending->grpc_port());
  EXPECT_EQ(goes.ReadToEnd(5000), 0);
  EXPECT_EQ(stays.ReadToEnd(500), -1);
}

TEST(Limits, VanishedCallersLeaveNothing) {
  const auto server = StartServer(TestOptions());
  const std::string message = MakeRequest(4, 16, 16, 64).SerializeAsString();
  for (int round = 0; round < 50; ++round) {
    RawCaller caller(server->grpc_port());
    caller.SendHeaders();
    caller.SendMessage(message, static_cast<size_t>(round) * message.size() / 49);
  }
  EXPECT_TRUE(IsIdle(*server));
  const auto channel = Connect(*server);
  EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
}

TEST(Limits, CancelledAndLateCallsGiveEverythingBack) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  const v1::AttendRequest request = MakeRequest(8, 1024, 64, 64);
  for (int i = 0; i < 40; ++i) {
    Attend(*channel, request, nullptr, [&](grpc::ClientContext* context) {
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(i * 250));
    });
  }
  EXPECT_TRUE(IsIdle(*server));
}

}  // namespace
}  // namespace attend::server
