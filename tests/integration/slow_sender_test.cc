// S2b: many large messages that come in slowly take no more memory than the byte budget, and do not keep
// others from being served.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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

// One call that says its size beforehand, as the client library does.
grpc::Status CallAnnounced(const std::shared_ptr<grpc::Channel>& channel, const std::string& message,
                           std::chrono::seconds limit) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  context.AddMetadata("attend-request-bytes", absl::StrCat(message.size()));
  return Call(channel, message, &context).status;
}

TEST(SlowSenders, StayWithinTheBudgetAndOthersAreServed) {
  constexpr int kSlow = 12;
  constexpr int64_t kBudget = 64 * kMebibyte;
  ServerProcess server({absl::StrCat("--receive-bytes-max=", kBudget)});
  ASSERT_TRUE(server.running()) << server.Log();
  const int port = std::stoi(server.target().substr(server.target().find(':') + 1));
  auto proxy = std::make_unique<SlowProxy>(port, 8 * kMebibyte);
  const std::string large = SimpleRequest(8, 8192).SerializeAsString();  // 24 MiB: 3 s at 8 MiB/s
  const std::string small = SimpleRequest(1, 16).SerializeAsString();
  ASSERT_TRUE(CallAnnounced(server.Connect(), small, std::chrono::seconds(30)).ok());
  const int64_t before = server.ResidentBytes();

  std::atomic<int> sending = kSlow, answered = 0;
  std::vector<std::thread> senders;
  for (int i = 0; i < kSlow; ++i) {
    senders.emplace_back([&] {
      if (CallAnnounced(ConnectTo(proxy->target()), large, std::chrono::seconds(120)).ok()) ++answered;
      --sending;
    });
  }
  int64_t most = 0;
  int served = 0;  // small requests answered while large ones stood in line
  const auto channel = server.Connect();
  const auto waiting = [&server] { return Metric(server.metrics_port(), "attend_receive_waiting"); };
  while (sending > 0) {
    const bool line_before = waiting() > 0;
    const grpc::Status status = CallAnnounced(channel, small, std::chrono::seconds(120));
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (line_before && waiting() > 0) ++served;
    most = std::max(most, server.ResidentBytes() - before);
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(answered, kSlow) << "held, not refused";
  EXPECT_GE(served, 10) << "small requests do not wait behind large ones";
  // Besides what the budget grants: a connection's flow-control window each, and the tensor blocks of
  // requests that have arrived (of 24 MiB and a reply of 8, a few at a time).
  EXPECT_LT(most, kBudget + kSlow * 4 * kMebibyte + 4 * 32 * kMebibyte);
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
}

TEST(SlowSenders, ThatStopInTheMiddleLoseTheirGrant) {
  ServerProcess server({"--receive-timeout=2s"});
  ASSERT_TRUE(server.running()) << server.Log();
  const int port = std::stoi(server.target().substr(server.target().find(':') + 1));
  SlowProxy proxy(port, kMebibyte);
  const std::string large = SimpleRequest(8, 8192).SerializeAsString();  // 24 s at 1 MiB/s
  const grpc::Status status = CallAnnounced(ConnectTo(proxy.target()), large, std::chrono::seconds(60));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_EQ(WaitUntilIdle(server.metrics_port()), "");
  EXPECT_TRUE(
      CallAnnounced(server.Connect(), SimpleRequest(1, 16).SerializeAsString(), std::chrono::seconds(30))
          .ok());
}

}  // namespace
}  // namespace attend::integration
