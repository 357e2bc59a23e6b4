// What a client sends, what it returns and what it refuses, against an ordinary server.
#include "attend/client.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/reference.h"
#include "tests/client/client_fixture.h"
#include "tests/client/test_server.h"

namespace attend {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ExpectNear;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::Inputs;
using ::testing::IsEmpty;
using testing::NewClient;
using ::testing::SizeIs;
using testing::TestServer;

TEST(Client, ReturnsAttentionWithLseAndWeights) {
  TestServer server;
  Inputs inputs({2, 3, 17, 8});
  inputs.request.causal = Causal::kBottomRight;
  inputs.request.kernel = Kernel::kNaive;
  inputs.request.return_lse = inputs.request.return_weights = true;
  const auto response = NewClient(server.address())->Attend(inputs.request);
  ASSERT_TRUE(response.ok()) << response.status();
  const auto want = cli::Reference(inputs.request);
  EXPECT_EQ(response->out.shape(), (Shape{2, 3, 17, 8}));
  EXPECT_EQ(response->lse->shape(), (Shape{2, 3, 17}));
  EXPECT_EQ(response->weights->shape(), (Shape{2, 3, 17, 17}));
  ExpectNear(response->out.as<float>(), want->out);
  ExpectNear(response->lse->as<float>(), want->lse);
  ExpectNear(response->weights->as<float>(), want->weights);
  EXPECT_EQ(response->report.kernel, Kernel::kNaive);
  EXPECT_EQ(response->report.device, "reference");
  EXPECT_EQ(response->attempts, 1);
}

TEST(Client, SendsEveryOptionAndTensorBytesAsTheyAre) {
  TestServer server;
  Inputs inputs({1, 2, 300, 8});
  const std::vector<float> slopes = {0.5f, 0.25f}, sinks = {1, -1}, bias(300, 0.125f);
  const std::vector<uint8_t> mask(300, 1);
  Request& r = inputs.request;
  r.kernel = Kernel::kOnline;
  r.causal = Causal::kTopLeft;
  r.scale = 0.0f;  // set, though zero
  r.softcap = 30.0f;
  r.window_left = 0;
  r.window_right = 7;
  r.q_lengths = {299};
  r.kv_lengths = {298};
  r.bias = {DataType::kFp32, {1, 1, 1, 300}, bias.data()};
  r.mask = {DataType::kBool, {1, 1, 1, 300}, mask.data()};
  r.alibi_slopes = {DataType::kFp32, {2}, slopes.data()};
  r.sinks = {DataType::kFp32, {2}, sinks.data()};
  r.weight_rows = {5, 0};
  const auto response = NewClient(server.address())->Attend(r);
  ASSERT_TRUE(response.ok()) << response.status();

  ASSERT_THAT(server.calls(), SizeIs(1));
  const v1::AttendRequest sent = server.calls()[0].request;
  const auto bytes = [](const auto& data) {
    return std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(data[0]));
  };
  EXPECT_EQ(server.calls()[0].announced_bytes, absl::StrCat(sent.ByteSizeLong()));
  EXPECT_EQ(sent.q_data(), bytes(inputs.q));
  EXPECT_EQ(sent.k_data(), bytes(inputs.k));
  EXPECT_EQ(sent.v_data(), bytes(inputs.v));
  EXPECT_EQ(sent.bias_data(), bytes(bias));
  EXPECT_EQ(sent.mask_data(), bytes(mask));
  EXPECT_EQ(sent.alibi_slopes_data(), bytes(slopes));
  EXPECT_EQ(sent.sinks_data(), bytes(sinks));
  EXPECT_EQ(sent.mask().dtype(), v1::DATA_TYPE_BOOL);
  EXPECT_THAT(sent.q().shape(), ElementsAre(1, 2, 300, 8));
  EXPECT_EQ(sent.kernel(), v1::KERNEL_ONLINE);
  EXPECT_EQ(sent.causal(), v1::CAUSAL_MODE_TOP_LEFT);
  EXPECT_TRUE(sent.has_scale());
  EXPECT_EQ(sent.scale(), 0);
  EXPECT_EQ(sent.softcap(), 30);
  EXPECT_TRUE(sent.has_window_left());
  EXPECT_EQ(sent.window_left(), 0);
  EXPECT_EQ(sent.window_right(), 7);
  EXPECT_THAT(sent.q_lengths(), ElementsAre(299));
  EXPECT_THAT(sent.kv_lengths(), ElementsAre(298));
  EXPECT_THAT(sent.weight_rows(), ElementsAre(5, 0));
  EXPECT_FALSE(sent.return_lse());
  ExpectNear(response->out.as<float>(), cli::Reference(r)->out);
}

TEST(Client, WritesResultsWhereTheCallerWantsThem) {
  TestServer server;
  Inputs inputs({1, 2, 40, 16});
  inputs.request.return_lse = true;
  std::vector<float> out(1 * 2 * 40 * 16), lse(80);
  CallOptions options;
  options.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * 4};
  options.lse = {reinterpret_cast<std::byte*>(lse.data()), lse.size() * 4};
  const auto response = NewClient(server.address())->Attend(inputs.request, options);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->out.bytes().data(), options.out.data());
  const auto want = cli::Reference(inputs.request);
  ExpectNear(out, want->out);
  ExpectNear(lse, want->lse);
}

TEST(Client, RefusesResultBuffersOfAnotherSizeBeforeSending) {
  TestServer server;
  Inputs inputs({1, 1, 4, 8});
  std::vector<std::byte> small(4 * 8 * 4 - 1);
  CallOptions options;
  options.out = absl::MakeSpan(small);
  options.lse = absl::MakeSpan(small);
  const auto response = NewClient(server.address())->Attend(inputs.request, options);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      GetViolations(response.status()),
      ElementsAre(AllOf(Field(&Violation::field, "out"),
                        Field(&Violation::description, HasSubstr("128 bytes, the buffer for it 127"))),
                  Field(&Violation::field, "lse")));
  EXPECT_THAT(server.calls(), IsEmpty());
}

// S1: a default gRPC client stops at 4 MiB.
TEST(Client, TakesResponsesAbove4MiB) {
  TestServer server;
  Inputs inputs({1, 1, 1200, 8});
  inputs.request.return_weights = true;
  const auto response = NewClient(server.address())->Attend(inputs.request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_GT(response->weights->bytes().size(), 5u << 20);
  ExpectNear(response->weights->as<float>(), cli::Reference(inputs.request)->weights);
}

// S2: what no message can carry is refused before anything is sent or read.
TEST(Client, RefusesRequestsAbove2GiBWithTheLimit) {
  TestServer server;
  const float unread = 0;
  Request request;
  request.q = request.k = request.v = {DataType::kFp32, {1, 8, 1 << 20, 32}, &unread};  // 1 GiB each
  const auto response = NewClient(server.address())->Attend(request);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(GetViolations(response.status()),
              ElementsAre(Field(&Violation::description, HasSubstr(absl::StrCat(Client::kMessageBytesMax)))));
  EXPECT_THAT(server.calls(), IsEmpty());
}

TEST(Client, RefusesResponsesAbove2GiBWithTheLimit) {
  TestServer server;
  Inputs inputs({1, 1, 30000, 8});
  inputs.request.return_weights = true;
  const auto response = NewClient(server.address())->Attend(inputs.request);
  EXPECT_THAT(GetViolations(response.status()), ElementsAre(Field(&Violation::field, "weights")));
  EXPECT_THAT(server.calls(), IsEmpty());
}

TEST(Client, RefusesTensorsWithoutMemoryAndShapesWithoutSize) {
  TestServer server;
  Inputs inputs({1, 1, 4, 8});
  inputs.request.k.data = nullptr;
  inputs.request.v.shape = {1, 1, -4, 8};
  inputs.request.q.shape = {int64_t{1} << 40, int64_t{1} << 40, 4, 8};
  const auto response = NewClient(server.address())->Attend(inputs.request);
  EXPECT_THAT(GetViolations(response.status()),
              ElementsAre(Field(&Violation::field, "q.shape"), Field(&Violation::field, "k"),
                          Field(&Violation::field, "v.shape")));
}

TEST(Client, EmptyTensorsNeedNoMemory) {
  TestServer server;
  Inputs inputs({2, 0, 4, 8});
  inputs.request.q.data = nullptr;
  const auto response = NewClient(server.address())->Attend(inputs.request);
  // The server's to judge: it may say that there are no heads, but it was asked.
  EXPECT_THAT(server.calls(), SizeIs(1));
}

TEST(Client, ViolationsAndReasonOfTheServerAreReadable) {
  TestServer server;
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field("q.shape[3]");
  violation->set_description("head_dim 7 is no multiple of 8");
  details.add_details()->PackFrom(bad);
  auto* info = details.add_details();
  info->set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  info->set_value(
      "\x0a\x0fINVALID_REQUEST\x12\x06"
      "attend");
  server.FailNext({{{grpc::StatusCode::INVALID_ARGUMENT, "no", details.SerializeAsString()}, ""}});
  Inputs inputs({1, 1, 4, 8});
  CallOptions options;
  options.request_id = "my-id";
  const auto response = NewClient(server.address())->Attend(inputs.request, options);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(GetViolations(response.status()),
              ElementsAre(AllOf(Field(&Violation::field, "q.shape[3]"),
                                Field(&Violation::description, "head_dim 7 is no multiple of 8"))));
  EXPECT_EQ(GetReason(response.status()), "INVALID_REQUEST");
  EXPECT_EQ(GetRequestId(response.status()), "my-id");
  EXPECT_THAT(Describe(response.status()), HasSubstr("q.shape[3]: head_dim 7"));
}

TEST(Client, PassesRequestIdTraceAndTokenOn) {
  TestServer server;
  ClientOptions options;
  options.token = "secret";
  Inputs inputs({1, 1, 4, 8});
  CallOptions call;
  call.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const auto response = NewClient(server.address(), options)->Attend(inputs.request, call);
  ASSERT_TRUE(response.ok()) << response.status();
  const auto calls = server.calls();
  EXPECT_EQ(calls[0].authorization, "Bearer secret");
  EXPECT_EQ(calls[0].traceparent, call.traceparent);
  EXPECT_EQ(calls[0].request_id, response->request_id);
  EXPECT_THAT(response->request_id, SizeIs(32));
}

TEST(Client, DescribesTheServer) {
  TestServer server;
  const auto info = NewClient(server.address())->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "1.2.3");
  ASSERT_THAT(info->devices, SizeIs(1));
  EXPECT_EQ(info->devices[0].model, "reference");
  EXPECT_THAT(info->kernels[0].dtypes, ElementsAre(DataType::kFp32));
  EXPECT_EQ(info->limits.request_bytes_max, 1 << 30);
}

TEST(Client, AsksForHealth) {
  TestServer server;
  const auto client = NewClient(server.address());
  EXPECT_TRUE(client->CheckHealth().ok());
  EXPECT_TRUE(client->CheckHealth("attend.v1.AttentionService").ok());
  EXPECT_EQ(client->CheckHealth("nobody").code(), absl::StatusCode::kNotFound);
  server.SetServing(false);
  EXPECT_THAT(std::string(client->CheckHealth().message()), HasSubstr("NOT_SERVING"));
}

TEST(Client, DoesNotBelieveResponsesWhoseSizesDisagree) {
  TestServer server;
  const auto client = NewClient(server.address());
  Inputs inputs({1, 1, 4, 8});
  inputs.request.return_lse = true;
  const std::vector<std::function<void(v1::AttendResponse&)>> lies = {
      [](auto& r) { r.mutable_out_data()->pop_back(); },
      [](auto& r) { r.clear_out(); },
      [](auto& r) { r.mutable_out()->set_shape(2, -4); },
      [](auto& r) { r.mutable_lse_data()->push_back('x'); },
      [](auto& r) { r.clear_lse(); },
      [](auto& r) { r.clear_lse(), r.clear_lse_data(); },
      [](auto& r) { r.mutable_out()->set_shape(2, 8), r.mutable_out()->set_shape(3, 4); },
      [](auto& r) { r.mutable_out()->set_dtype(v1::DATA_TYPE_UNSPECIFIED); },
  };
  for (const auto& lie : lies) {
    server.set_tamper(lie);
    EXPECT_EQ(client->Attend(inputs.request).status().code(), absl::StatusCode::kInternal);
  }
}

// The README's example for grpcurl: JSON, with bytes in base64, by the API's own names.
TEST(Api, TheRequestInJsonIsOne) {
  TestServer server;
  std::ifstream file("deploy/request.json");
  const std::string json{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  v1::AttendRequest request;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &request).ok());
  const auto stub = v1::AttentionService::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::AttendResponse response;
  ASSERT_TRUE(stub->Attend(&context, request, &response).ok());
  ASSERT_EQ(response.out_data().size(), 32u);
  float out = 0, lse = 0;
  std::memcpy(&out, response.out_data().data(), 4);
  std::memcpy(&lse, response.lse_data().data(), 4);
  EXPECT_EQ(out, 2);
  EXPECT_NEAR(lse, std::log(2), 1e-6);
}

}  // namespace
}  // namespace attend
