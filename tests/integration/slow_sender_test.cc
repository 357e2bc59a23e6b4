// S2b: many large messages that come in slowly take no more memory than the byte budget, and do not keep
// others from being served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"
#include "tests/integration/slow_proxy.h"

namespace attend::integration {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), args);
}

// One call, with its size in metadata: `announced`, or none where that is negative.
grpc::Status CallAnnounced(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
                           std::chrono::seconds limit, int64_t announced) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  if (announced >= 0) context.AddMetadata("attend-request-bytes", absl::StrCat(announced));
  return Call(channel, message, &context).status;
}

// As the client library does.
grpc::Status CallAnnounced(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
                           std::chrono::seconds limit) {
  return CallAnnounced(channel, message, limit, static_cast<int64_t>(message.size()));
}

// Tries again, as clients do, where the connection was closed under the call: idle ones are, above
// --wire-bytes-max.
grpc::Status CallPatiently(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
                           std::chrono::seconds limit) {
  grpc::Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = CallAnnounced(channel, message, limit);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  return status;
}

// What was seen while a crowd sent large messages slowly and somebody else small ones.
struct Seen {
  int answered = 0;              // of the large ones
  std::vector<int> other_codes;  // of those that were not
  int served = 0;                // small ones, while large ones stood in line
  int64_t most = 0;              // bytes of the server's memory above those before
};

Seen SendSlowly(const ServerProcess& server, int senders, const std::string& large, int64_t announced) {
  SlowProxy proxy(server.port(), 8 * kMebibyte);
  const std::string small = SmallMessage();
  const auto channel = server.Connect();
  EXPECT_TRUE(CallAnnounced(channel, small, std::chrono::seconds(30)).ok());
  const int64_t before = server.ResidentBytes();

  std::atomic<int> sending = senders;
  std::vector<grpc::Status> statuses(static_cast<size_t>(senders));
  std::vector<std::thread> threads;
  for (grpc::Status& status : statuses) {
    threads.emplace_back([&] {
      status = CallAnnounced(ConnectTo(proxy.target()), large, std::chrono::seconds(120), announced);
      --sending;
    });
  }
  Seen seen;
  const auto waiting = [&server] { return Metric(server.metrics_port(), "attend_receive_waiting"); };
  while (sending > 0) {
    const bool line_before = waiting() > 0;
    const grpc::Status status = CallPatiently(channel, small, std::chrono::seconds(120));
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (line_before && waiting() > 0) ++seen.served;
    seen.most = std::max(seen.most, server.ResidentBytes() - before);
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();
  for (const grpc::Status& status : statuses) {
    if (status.ok()) {
      ++seen.answered;
    } else {
      seen.other_codes.push_back(status.error_code());
    }
  }
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
  return seen;
}

TEST(SlowSenders, StayWithinTheBudgetAndOthersAreServed) {
  constexpr int kSlow = 12;
  constexpr int64_t kBudget = 64 * kMebibyte;
  ServerProcess server({absl::StrCat("--receive-bytes-max=", kBudget)});
  ASSERT_TRUE(server.running()) << server.Log();
  const std::string large = SimpleRequest(8, 8192).SerializeAsString();  // 24 MiB: 3 s at 8 MiB/s
  const Seen seen = SendSlowly(server, kSlow, large, static_cast<int64_t>(large.size()));
  EXPECT_EQ(seen.answered, kSlow) << "held, not refused";
  EXPECT_GE(seen.served, 10) << "small requests do not wait behind large ones";
  // Besides what the budget grants: a connection's flow-control window each, and the tensor blocks of
  // requests that have arrived (of 24 MiB and a reply of 8, a few at a time).
  EXPECT_LT(seen.most, kBudget + kSlow * 4 * kMebibyte + 4 * 32 * kMebibyte);
}

// What the budget assumes of them is far from what they send. None of them has to be served, but others have,
// and the memory is bounded.
TEST(SlowSenders, ThatDoNotSayTheirSizeAreBoundedToo) {
  constexpr int kSlow = 12;
  constexpr int64_t kWire = 96 * kMebibyte;
  const std::string large = SimpleRequest(8, 16384).SerializeAsString();  // 48 MiB: 576 of all
  for (const int64_t announced : {int64_t{-1}, int64_t{1000}}) {
    ServerProcess server({"--receive-bytes-max=64MiB", absl::StrCat("--wire-bytes-max=", kWire)});
    ASSERT_TRUE(server.running()) << server.Log();
    const Seen seen = SendSlowly(server, kSlow, large, announced);
    EXPECT_LT(seen.most, kWire + 4 * 64 * kMebibyte);  // and the tensors of a few
    for (const int code : seen.other_codes) {
      EXPECT_THAT(code, ::testing::AnyOf(grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::CANCELLED,
                                         grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::INVALID_ARGUMENT));
    }
    EXPECT_GE(Metric(server.metrics_port(), "attend_rejected_total{reason=\"incomplete\"}"), 1);
  }
}

TEST(SlowSenders, ThatStopInTheMiddleLoseTheirGrant) {
  ServerProcess server({"--receive-timeout=2s"});
  ASSERT_TRUE(server.running()) << server.Log();
  SlowProxy proxy(server.port(), kMebibyte);
  const std::string large = SimpleRequest(8, 8192).SerializeAsString();  // 24 s at 1 MiB/s
  const grpc::Status status = CallAnnounced(ConnectTo(proxy.target()), large, std::chrono::seconds(60));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
  // The two seconds stand in the log as what they were.
  const std::string log = server.Log();
  const auto microseconds = [&log](const char* stage) {
    const size_t call = log.find("code=DEADLINE_EXCEEDED"), at = log.find(stage, call);
    return call == log.npos || at == log.npos ? -1.0
                                              : std::strtod(log.c_str() + at + std::strlen(stage), nullptr);
  };
  EXPECT_GE(microseconds("receive_us="), 1.9e6) << log;
  EXPECT_LT(microseconds("reply_us="), 1.9e6) << log;
  EXPECT_THAT(log, ::testing::Not(::testing::ContainsRegex("_us=[0-9.]+e"))) << "written out";
  EXPECT_TRUE(CallAnnounced(server.Connect(), SmallMessage(), std::chrono::seconds(30)).ok());
}

}  // namespace
}  // namespace attend::integration
