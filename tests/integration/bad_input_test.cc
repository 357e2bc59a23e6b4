// Bad input from a real client process to a real server: each is refused with words that help, nothing of
// it stays, and the server answers the next request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "tests/integration/raw_client.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

using server::Violation;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

class BadInput : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServerProcess>(std::vector<std::string>{"--request-bytes-max=8MiB"});
    ASSERT_TRUE(server_->running()) << server_->Log();
    channel_ = server_->Connect();
  }
  static void TearDownTestSuite() {
    channel_.reset();
    ASSERT_TRUE(server_ != nullptr && server_->running()) << "it ended by itself";
    EXPECT_EQ(server_->Stop(), 0) << server_->Log();
    server_.reset();
  }
  // Whatever a test sent: the next request is answered.
  void TearDown() override {
    const RawReply reply = Call(channel_, SmallMessage());
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply.Parse().out_data().size(), 16u * 64 * 2);
  }

  static void ExpectRefused(const RawReply& reply, const std::string& field, const std::string& says) {
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << reply.status.error_message();
    EXPECT_THAT(reply.Violations(), Contains(testing::AllOf(Field(&Violation::field, field),
                                                            Field(&Violation::description, HasSubstr(says)))))
        << reply.status.error_message();
  }
  static RawReply Send(const v1::AttendRequest& request) {
    return Call(channel_, request.SerializeAsString());
  }

  static std::unique_ptr<ServerProcess> server_;
  static std::shared_ptr<grpc::Channel> channel_;
};
std::unique_ptr<ServerProcess> BadInput::server_;
std::shared_ptr<grpc::Channel> BadInput::channel_;

TEST_F(BadInput, S2RequestAboveTheLimitIsRefused) {
  EXPECT_EQ(Send(SimpleRequest(8, 8192)).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(BadInput, S2cCompressedRequestIsRefused) {
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const int64_t before = server_->ResidentBytes();
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    // 60 MiB of zeros, some 60 KiB on the wire.
    const RawReply reply = Call(channel_, std::string(60 << 20, '\0'), &context);
    EXPECT_THAT(reply.status.error_code(),
                AnyOf(grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::INVALID_ARGUMENT))
        << reply.status.error_message();
    EXPECT_LT(server_->ResidentBytes() - before, 16 << 20) << "it was never inflated";
  }
}

TEST_F(BadInput, S2dFieldFromANewerApiIsNamed) {
  std::string message = SmallMessage();
  message.append("\xa0\x01\x05", 3);  // field 20
  ExpectRefused(Call(channel_, message), "AttendRequest", "field number 20");
}

TEST_F(BadInput, S2dEnumValueFromANewerApiIsNamed) {
  v1::AttendRequest request = SimpleRequest(1, 16);
  request.set_kernel(static_cast<v1::Kernel>(9));
  request.mutable_q()->set_dtype(static_cast<v1::DataType>(42));
  const RawReply reply = Send(request);
  ExpectRefused(reply, "kernel", "9 is not a Kernel that this server knows");
  ExpectRefused(reply, "q.dtype", "value 42");
}

TEST_F(BadInput, S19BytesShorterThanTheShapeSays) {
  v1::AttendRequest request = SimpleRequest(2, 16);
  request.mutable_k_data()->pop_back();
  const RawReply reply = Send(request);
  ExpectRefused(reply, "k_data", "has 4095 bytes; shape [1,2,16,64] of 2-byte elements needs 4096");
  EXPECT_EQ(reply.message.Length(), 0u) << "nothing is returned";
}

TEST_F(BadInput, S19NegativeDimension) {
  v1::AttendRequest request = SimpleRequest(2, 16);
  request.mutable_v()->set_shape(2, -1);
  ExpectRefused(Send(request), "v.shape[2]", "is -1; must be 0 or more");
}

TEST_F(BadInput, S19DimensionsWhoseProductOverflows) {
  for (const int64_t size : {std::numeric_limits<int64_t>::max(), int64_t{1} << 62, int64_t{1} << 57}) {
    v1::AttendRequest request = SimpleRequest(2, 16);
    request.mutable_q()->set_shape(2, size);
    ExpectRefused(Send(request), "q.shape", "multiplies to more than 2^63 bytes");
  }
}

TEST_F(BadInput, S19ALargeShapeWithoutBytesTakesNoMemory) {
  const int64_t before = server_->ResidentBytes();
  for (int i = 0; i < 100; ++i) {
    v1::AttendRequest request = SimpleRequest(2, 16);
    for (v1::TensorSpec* spec : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
      spec->set_shape(2, int64_t{1} << 33);
    }
    ExpectRefused(Send(request), "q_data", "has 4096 bytes");
  }
  EXPECT_LT(server_->ResidentBytes() - before, 8 << 20);
}

TEST_F(BadInput, K17LengthsBeyondTheBuffer) {
  v1::AttendRequest request = SimpleRequest(2, 16);
  request.set_layout(v1::LAYOUT_PACKED);
  for (v1::TensorSpec* spec : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    spec->clear_shape();
    for (const int64_t size : {16, 2, 64}) spec->add_shape(size);
  }
  for (const int64_t length : {8, 8, 0}) request.add_q_lengths(length);
  for (const int64_t length : {8, 9, -1}) request.add_kv_lengths(length);
  ExpectRefused(Send(request), "kv_lengths[1]", "starts at 8 and passes the total of 16");
}

TEST_F(BadInput, FlashIsAskedForAllWeights) {
  v1::AttendRequest request = SimpleRequest(2, 16);
  request.set_kernel(v1::KERNEL_FLASH);
  request.set_return_weights(true);
  ExpectRefused(Send(request), "return_weights", "KERNEL_FLASH never forms all weights");
}

TEST_F(BadInput, EveryViolationIsSaidAtOnce) {
  v1::AttendRequest request = SimpleRequest(2, 16);
  request.set_scale(std::numeric_limits<float>::infinity());
  request.set_softcap(-1);
  request.set_window_left(-2);
  request.mutable_q()->set_shape(3, 60);
  const RawReply reply = Send(request);
  for (const char* field : {"scale", "softcap", "window_left", "q.shape[3]"}) {
    EXPECT_THAT(reply.Violations(), Contains(Field(&Violation::field, field)));
  }
}

TEST_F(BadInput, AReplyTooLargeIsRefusedBeforeItIsComputed) {
  v1::AttendRequest request = SimpleRequest(1, 17000);  // weights of 17000 * 17000 * 4 bytes
  request.set_return_weights(true);
  ExpectRefused(Send(request), "return_weights", "makes a reply of");
}

TEST_F(BadInput, MaskThatIsNotBoolean) {
  v1::AttendRequest request = SimpleRequest(1, 4);
  request.mutable_mask()->set_dtype(v1::DATA_TYPE_BOOL);
  for (const int64_t size : {1, 1, 4, 4}) request.mutable_mask()->add_shape(size);
  request.set_mask_data(std::string(16, '\xff'));
  ExpectRefused(Send(request), "mask_data", "byte 0 is 255; must be 0 or 1");
}

TEST_F(BadInput, BytesThatAreNoMessage) {
  std::string noise(100000, '\0');
  uint32_t state = 1;
  for (char& c : noise) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  for (const std::string& message :
       {noise, std::string(1000, '\xff'), std::string("\x0a"), std::string("hello"), std::string(1000, '\0'),
        SmallMessage().substr(0, 100)}) {
    const RawReply reply = Call(channel_, message);
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << reply.status.error_message();
    EXPECT_FALSE(reply.Violations().empty());
  }
}

TEST_F(BadInput, AnEmptyMessageLacksItsTensors) { ExpectRefused(Call(channel_, ""), "q", "is required"); }

TEST_F(BadInput, ErrorsAreSmallWhateverTheRequest) {
  v1::AttendRequest request = SimpleRequest(1, 16);
  for (int i = 0; i < 60000; ++i) request.add_weight_rows(-1 - i);
  const RawReply reply = Send(request);
  ExpectRefused(reply, "weight_rows[0]", "is -1");
  EXPECT_LT(reply.status.error_details().size() + reply.status.error_message().size(), 8000u);
}

TEST_F(BadInput, UnknownMethods) {
  for (const char* method :
       {"/attend.v1.AttentionService/Nothing", "/attend.v2.AttentionService/Attend", "/x/y"}) {
    EXPECT_EQ(Call(channel_, "", nullptr, method).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
}

TEST_F(BadInput, ManyCallersAtOnce) {
  const int64_t before = server_->ResidentBytes();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([caller] {
      const auto channel = server_->Connect();
      v1::AttendRequest bad = SimpleRequest(4, 512);
      bad.mutable_v_data()->resize(static_cast<size_t>(caller));
      const std::string wrong = bad.SerializeAsString();
      const std::string right = SmallMessage();
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(Call(channel, wrong).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
        EXPECT_TRUE(Call(channel, right).status.ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LT(server_->ResidentBytes() - before, 64 << 20);
}

// --- what is not bad input, but looks so to a client that is not told ---

TEST(Reply, S1AboveFourMebibytesNeedsAClientThatAllowsIt) {
  ServerProcess server;
  ASSERT_TRUE(server.running()) << server.Log();
  const std::string request = SimpleRequest(8, 8192).SerializeAsString();  // a reply of 8 MiB
  EXPECT_TRUE(Call(server.Connect(), request).status.ok());
  grpc::ChannelArguments stock;
  const auto channel = grpc::CreateCustomChannel(server.target(), grpc::InsecureChannelCredentials(), stock);
  EXPECT_EQ(Call(channel, request).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Call(channel, SmallMessage()).status.ok());
}

TEST(Start, S17ASecondServerOnThePortSaysSo) {
  ServerProcess first;
  ASSERT_TRUE(first.running()) << first.Log();
  ServerProcess second({"--address=" + first.target()});
  EXPECT_FALSE(second.running());
  EXPECT_THAT(second.Log(), HasSubstr(first.target()));
  EXPECT_TRUE(Call(first.Connect(), SmallMessage()).status.ok());
}

TEST(Start, BadFlagsEndItWithALineThatNamesThem) {
  for (const auto& [flag, said] : std::vector<std::pair<std::string, std::string>>{
           {"--device=abacus", "'abacus' is none of auto|cuda|cpu|null"},
           {"--request-bytes-max=lots", "--request-bytes-max: 'lots' is no size"},
           {"--no-such-flag=1", "--no-such-flag"},
           {"--address=0.0.0.0:0", "--insecure"}}) {
    ServerProcess server({flag});
    EXPECT_FALSE(server.running()) << flag;
    const std::string log = server.Log();
    EXPECT_THAT(log, HasSubstr(said));
    EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 2) << log;
  }
}

}  // namespace
}  // namespace attend::integration
