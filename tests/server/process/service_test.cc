// The gRPC surface: what callers send and get back, metadata, refusals, health, reflection, information.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/process/fixture.h"

namespace attend::server {
namespace {

using ::testing::HasSubstr;

google::rpc::BadRequest BadRequestOf(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  for (const auto& any : details.details()) any.UnpackTo(&bad);
  return bad;
}

std::string InitialMetadata(const grpc::ClientContext& context, const std::string& key) {
  const auto& all = context.GetServerInitialMetadata();
  const auto found = all.find(key);
  return found == all.end() ? "" : std::string(found->second.data(), found->second.size());
}

TEST(Service, AnswersInShapeAndSaysWhatRan) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  v1::AttendRequest request = MakeRequest(2, 5, 7, 8);
  request.set_return_lse(true);
  v1::AttendResponse response;
  const grpc::Status status = Attend(*channel, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.out().shape(), ::testing::ElementsAre(1, 2, 5, 8));
  EXPECT_EQ(response.out_data(), std::string(2 * 5 * 8 * 4, '\0'));
  EXPECT_EQ(response.lse_data().size(), size_t{2 * 5 * 4});
  EXPECT_EQ(response.report().device(), "null");
  EXPECT_EQ(response.report().kernel(), v1::KERNEL_FLASH);
  EXPECT_EQ(response.report().batch_requests(), 1);
}

TEST(Service, LargeRequestGoesThroughTheWireThreads) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  v1::AttendResponse response;
  const grpc::Status status = Attend(*channel, MakeRequest(8, 4096, 16, 64), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.out_data(), std::string(8 * 4096 * 64 * 4, '\0'));
  EXPECT_TRUE(
      Eventually([&] { return MetricValue(*server, "attend_pinned_memory_bytes{kind=\"used\"}") == 0; }));
  EXPECT_TRUE(
      Eventually([&] { return MetricValue(*server, "attend_receive_budget_bytes{kind=\"used\"}") == 0; }));
}

// A small request has one block for inputs and outputs, a large one has two.
TEST(Service, OneBlockOrTwoHoldTheSame) {
  double peaks[2] = {};
  std::string answers[2];
  for (const bool small : {false, true}) {
    ServerOptions options = TestOptions();
    options.device = "cpu";
    options.wire_inline_bytes = small ? 1 << 20 : 0;
    const auto server = StartServer(options);
    v1::AttendRequest request = MakeRequest(2, 5, 7, 8);
    request.set_return_lse(true);
    v1::AttendResponse response;
    const double before = MetricValue(*server, "attend_pinned_memory_bytes{kind=\"used\"}");
    const grpc::Status status = Attend(*Connect(*server), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    response.clear_report();
    answers[small] = response.SerializeAsString();
    peaks[small] = MetricValue(*server, "attend_pinned_memory_bytes{kind=\"peak\"}");
    EXPECT_TRUE(Eventually(
        [&] { return MetricValue(*server, "attend_pinned_memory_bytes{kind=\"used\"}") == before; }));
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(peaks[0], peaks[1]);
}

// From four on, answers are sent by the threads of their calls' queues.
TEST(Service, AnswersAllOfALargeBatch) {
  constexpr int kCalls = 8;
  ServerOptions options = TestOptions();
  options.batch_requests_max = kCalls;
  options.max_queue_delay_us = 60'000'000;  // until the batch is full
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  v1::AttendResponse responses[kCalls];
  std::vector<std::thread> callers;
  for (v1::AttendResponse& response : responses) {
    callers.emplace_back([&channel, &response] {
      const grpc::Status status = Attend(*channel, MakeRequest(1, 2, 3, 8), &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const v1::AttendResponse& response : responses) {
    EXPECT_EQ(response.report().batch_requests(), kCalls);
    EXPECT_EQ(response.out_data(), std::string(2 * 8 * 4, '\0'));
  }
}

TEST(Service, GivesBackTheCallersIds) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const grpc::Status status = Attend(
      *channel, MakeRequest(1, 1, 1, 8), nullptr,
      [&](grpc::ClientContext* context) {
        context->AddMetadata("x-request-id", "job-17/part:3");
        context->AddMetadata("traceparent", trace);
      },
      [&](const grpc::ClientContext& context) {
        EXPECT_EQ(InitialMetadata(context, "x-request-id"), "job-17/part:3");
        EXPECT_EQ(InitialMetadata(context, "traceparent"), trace);
      });
  EXPECT_TRUE(status.ok());
}

TEST(Service, MakesAnIdWhereTheCallersIsNoneOrUnfitAndTellsItWithErrors) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  v1::AttendRequest wrong = MakeRequest(1, 1, 1, 8);
  wrong.clear_k_data();
  for (const std::string& id : {std::string(), std::string(129, 'x'), std::string("two words")}) {
    Attend(
        *channel, wrong, nullptr,
        [&](grpc::ClientContext* context) {
          if (!id.empty()) context->AddMetadata("x-request-id", id);
          context->AddMetadata("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01");
        },
        [&](const grpc::ClientContext& context) {
          EXPECT_THAT(InitialMetadata(context, "x-request-id"), ::testing::MatchesRegex("[0-9a-f]{32}"));
          EXPECT_EQ(InitialMetadata(context, "traceparent"), "");
        });
  }
}

TEST(Service, ListsEveryViolation) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  v1::AttendRequest request = MakeRequest(2, 5, 7, 8);
  request.mutable_q()->set_shape(2, -1);
  request.set_softcap(-1.0f);
  const grpc::Status status = Attend(*channel, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::string fields;
  const google::rpc::BadRequest bad = BadRequestOf(status);
  for (const auto& violation : bad.field_violations()) fields += violation.field() + " ";
  EXPECT_THAT(fields, HasSubstr("q.shape[2]"));
  EXPECT_THAT(fields, HasSubstr("softcap"));
}

TEST(Service, RefusesAnnouncedSizesAboveTheLimitBeforeReading) {
  ServerOptions options = TestOptions();
  options.request_bytes_max = 1 << 20;
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  const grpc::Status status =
      Attend(*channel, MakeRequest(1, 1, 1, 8), nullptr, [](grpc::ClientContext* context) {
        context->AddMetadata("attend-request-bytes", std::to_string((1 << 20) + 1));
      });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1048576"));
}

TEST(Service, RefusesMoreBytesThanAnnounced) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  const v1::AttendRequest request = MakeRequest(1, 4, 4, 8);
  const auto announce = [&](size_t bytes) {
    return Attend(*channel, request, nullptr, [&](grpc::ClientContext* context) {
      context->AddMetadata("attend-request-bytes", std::to_string(bytes));
    });
  };
  EXPECT_TRUE(announce(request.ByteSizeLong()).ok());
  EXPECT_EQ(announce(request.ByteSizeLong() - 1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(Service, RefusesMessagesAboveTheLimit) {
  ServerOptions options = TestOptions();
  options.request_bytes_max = 1 << 20;
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  const grpc::Status status = Attend(*channel, MakeRequest(1, 8192, 1, 64));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
}

TEST(Service, RefusesCompressedRequests) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const grpc::Status status =
        Attend(*channel, MakeRequest(8, 4096, 16, 64), nullptr,
               [&](grpc::ClientContext* context) { context->set_compression_algorithm(algorithm); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("ompression"));
  }
  EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
}

TEST(Service, UnknownMethodsAreUnimplemented) {
  const auto server = StartServer(TestOptions());
  grpc::GenericStub stub(Connect(*server));
  for (const char* method : {"/attend.v1.AttentionService/Detach", "/other.Service/Attend"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
}

TEST(Service, TellsWhatItIs) {
  const auto server = StartServer(TestOptions());
  const auto stub = v1::InfoService::NewStub(Connect(*server));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), "null");
  EXPECT_EQ(info.kernels_size(), 3);
  EXPECT_EQ(info.limits().host_bytes_max(), int64_t{256} << 20);
}

TEST(Service, ASecondServerOnThePortSaysSo) {
  const auto first = StartServer(TestOptions());
  ServerOptions options = TestOptions();
  options.address = Target(*first);
  ASSERT_TRUE(ResolveOptions(&options).ok());
  const auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen on " + options.address + ": Address already in use"));
}

TEST(Service, ServesOnAUnixSocketAndGuardsIt) {
  ServerOptions options = TestOptions();
  const std::string path = ::testing::TempDir() + "/attend-test-" + std::to_string(getpid());
  options.address = "unix:" + path;
  {
    const auto server = StartServer(options);
    const auto channel = grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials());
    EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
    ASSERT_TRUE(ResolveOptions(&options).ok());
    const auto second = Server::Start(options);
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server"));
    EXPECT_TRUE(Attend(*channel, MakeRequest(1, 1, 1, 8)).ok());
  }
  // What a dead server left behind is no obstacle.
  const auto server = StartServer(options);
  unlink(path.c_str());
}

TEST(Service, OtherMachinesNeedAWord) {
  ServerOptions options = TestOptions();
  options.address = "127.0.0.1:0,0.0.0.0:0";
  EXPECT_THAT(std::string(ResolveOptions(&options).message()), HasSubstr("--insecure"));
  options.insecure = true;
  EXPECT_GT(StartServer(options)->grpc_port(), 0);
}

TEST(Service, SeveralThreadsCopyALargeRequest) {
  ServerOptions options = TestOptions();
  options.device = "cpu";
  options.wire_threads = 4;
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  // 10 MiB each of k and v. v is 1 throughout, and so is every weighted mean of it, unless a part is missing.
  const v1::AttendRequest request = MakeRequest(1, 1, 40960, 64);
  for (int i = 0; i < 5; ++i) {
    v1::AttendResponse response;
    const grpc::Status status = Attend(*channel, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    std::vector<float> out(64);
    ASSERT_EQ(response.out_data().size(), 4 * out.size());
    std::memcpy(out.data(), response.out_data().data(), response.out_data().size());
    for (const float x : out) EXPECT_NEAR(x, 1.0f, 1e-4f);
  }
}

}  // namespace
}  // namespace attend::server
