// Health, readiness, and the order of an end: readiness first, nothing accepted lost, nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/server/process/fixture.h"
#include "tests/server/process/raw_call.h"
#include "tests/server/process/raw_http2.h"

namespace attend::server {
namespace {

// HealthCheckRequest: field 1, a string.
std::string Name(const std::string& service) {
  if (service.empty()) return "";
  return std::string({'\x0a', static_cast<char>(service.size())}) + service;
}

// Of a HealthCheckResponse: field 1, a number; absent where it is 0.
int ServingStatus(const std::string& response) { return response.size() == 2 ? response[1] : 0; }

// grpc.health.v1.Health/Check: the serving status (1 SERVING, 2 NOT_SERVING), or -code of an error.
int Check(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  RawCall call(channel, "/grpc.health.v1.Health/Check");
  call.Write(Name(service));
  call.WritesDone();
  const std::optional<std::string> reply = call.Read();
  const grpc::Status status = call.Finish();
  if (!status.ok()) return -static_cast<int>(status.error_code());
  EXPECT_TRUE(reply.has_value());
  return ServingStatus(reply.value_or(""));
}

TEST(Health, ServesBothNames) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  EXPECT_EQ(Check(channel, ""), 1);
  EXPECT_EQ(Check(channel, "attend.v1.AttentionService"), 1);
  EXPECT_EQ(Check(channel, "no.such.Service"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), ::testing::StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(HttpGet(server->http_port(), "/readyz"), ::testing::StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(MetricValue(*server, "attend_ready"), 1);
}

// A stream of grpc.health.v1.Health/Watch.
class Watch {
 public:
  // Without a request.
  explicit Watch(const std::shared_ptr<grpc::Channel>& channel)
      : call_(channel, "/grpc.health.v1.Health/Watch") {}
  Watch(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) : Watch(channel) {
    call_.Write(Name(service));
    call_.WritesDone();
  }

  // The next status; -1 where the stream has ended.
  int Next() {
    const std::optional<std::string> response = call_.Read();
    return response.has_value() ? ServingStatus(*response) : -1;
  }
  grpc::Status Finish() { return call_.Finish(); }

 private:
  RawCall call_;
};

TEST(Health, WatchersHearOfTheDrainAndAreLetGo) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  Watch watch(channel, "attend.v1.AttentionService");
  Watch unknown(channel, "no.such.Service");
  const auto gone = std::make_unique<Watch>(channel, "");  // cancels while it watches
  EXPECT_EQ(watch.Next(), 1);
  EXPECT_EQ(unknown.Next(), 3);
  EXPECT_TRUE(server->Drain(absl::ZeroDuration()));
  EXPECT_EQ(watch.Next(), 2);
  EXPECT_EQ(watch.Next(), -1);
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Health, AWatchWhoseRequestNeverComesHoldsUpNoDrain) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  Watch silent(channel);
  EXPECT_EQ(Check(channel, ""), 1);  // behind the watch on the same connection: the server has it
  EXPECT_TRUE(server->Drain(absl::ZeroDuration()));
  EXPECT_EQ(silent.Next(), -1);
  EXPECT_EQ(silent.Finish().error_message(), "the server is shutting down") << "it was cancelled at last";
}

TEST(Health, WatchersAreBoundedOverAllConnections) {
  ServerOptions options = TestOptions();
  options.watches_max = 2;
  const auto server = StartServer(options);
  Watch first(Connect(*server), "");
  auto second = std::make_unique<Watch>(Connect(*server), "");
  EXPECT_EQ(first.Next(), 1);
  EXPECT_EQ(second->Next(), 1);
  const auto channel = Connect(*server);
  Watch third(channel, "");
  EXPECT_EQ(third.Next(), -1);
  const grpc::Status refused = third.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("--watches-max"));
  EXPECT_EQ(MetricValue(*server, "attend_rejected_total{reason=\"watches_full\"}"), 1);
  EXPECT_EQ(Check(channel, ""), 1);
  second.reset();
  EXPECT_TRUE(Eventually([&] { return Watch(channel, "").Next() == 1; }));
}

TEST(Drain, ReadinessGoesFirstWhileCallsAreStillTaken) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  ASSERT_EQ(Check(channel, ""), 1);
  std::thread drain([&] { EXPECT_TRUE(server->Drain(absl::Milliseconds(700))); });
  EXPECT_TRUE(Eventually([&] { return Check(channel, "attend.v1.AttentionService") == 2; }));
  EXPECT_EQ(Check(channel, ""), 2);
  const std::string ready = HttpGet(server->http_port(), "/readyz");
  EXPECT_THAT(ready, ::testing::StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(ready, ::testing::HasSubstr("draining"));
  EXPECT_THAT(HttpGet(server->http_port(), "/healthz"), ::testing::StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
  drain.join();
  EXPECT_FALSE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
}

TEST(Drain, WhatWasAcceptedIsAnsweredAndTheRestIsUnavailable) {
  const auto server = StartServer(TestOptions());
  absl::Mutex mutex;
  std::map<grpc::StatusCode, int> codes ABSL_GUARDED_BY(mutex);
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      const auto channel = Connect(*server);
      const v1::AttendRequest request = MakeRequest(4, 128, 16, 64);
      while (!stop) {
        const grpc::Status status = Attend(*channel, request);
        absl::MutexLock lock(&mutex);
        ++codes[status.error_code()];
        if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return;
      }
    });
  }
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(server->Drain(absl::ZeroDuration()));
  stop = true;
  for (std::thread& caller : callers) caller.join();
  absl::MutexLock lock(&mutex);
  EXPECT_GT(codes[grpc::StatusCode::OK], 0);
  for (const auto& [code, count] : codes) {
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::UNAVAILABLE)
        << count << " calls ended with " << code;
  }
}

TEST(Drain, EndsInTimeThoughACallerNeverFinishes) {
  ServerOptions options = TestOptions();
  options.drain_timeout = absl::Milliseconds(300);
  const auto server = StartServer(options);
  RawCaller caller(server->grpc_port());
  caller.SendHeaders();
  ASSERT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 1; }));
  const absl::Time start = absl::Now();
  EXPECT_FALSE(server->Drain(absl::ZeroDuration()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(Drain, AServerEndsWithoutOneToo) {
  RawCaller* left_behind = nullptr;
  {
    const auto server = StartServer(TestOptions());
    left_behind = new RawCaller(server->grpc_port());
    left_behind->SendHeaders();
    ASSERT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 1; }));
  }
  delete left_behind;
}

}  // namespace
}  // namespace attend::server
