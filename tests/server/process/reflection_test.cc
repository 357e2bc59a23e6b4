// A caller that knows nothing but the address, as grpcurl: it learns the method from reflection, makes the
// request from JSON, and reads the reply as JSON. Both versions of reflection have the same messages.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/process/fixture.h"
#include "tests/server/process/raw_call.h"

namespace attend::server {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

// Field numbers of grpc.reflection.v1, in the request.
constexpr int kFileByFilename = 3, kFileContainingSymbol = 4, kExtensionNumbers = 6, kListServices = 7;
// In the response.
constexpr int kOriginalRequest = 2, kFileResponse = 4, kNumbersResponse = 5, kListResponse = 6,
              kErrorResponse = 7;

std::string ReflectionMethod(const std::string& version = "v1") {
  return "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo";
}

// One question to reflection.
std::string Ask(const std::shared_ptr<grpc::Channel>& channel, int field, const std::string& value,
                const std::string& version = "v1") {
  UnknownFieldSet question;
  question.AddLengthDelimited(field, value);
  std::string bytes;
  question.SerializeToString(&bytes);
  RawCall call(channel, ReflectionMethod(version));
  call.Write(bytes);
  const std::optional<std::string> answer = call.Read();
  EXPECT_TRUE(answer.has_value());
  call.WritesDone();
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answer.value_or("");
}

// The values of a length-delimited field of a field, at each step of the path.
std::vector<std::string> Values(const std::string& message, std::vector<int> path) {
  std::vector<std::string> found;
  UnknownFieldSet fields;
  EXPECT_TRUE(fields.ParseFromString(message));
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.number() != path[0] || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (path.size() == 1) {
      found.push_back(field.length_delimited());
      continue;
    }
    for (std::string& value : Values(field.length_delimited(), {path.begin() + 1, path.end()})) {
      found.push_back(std::move(value));
    }
  }
  return found;
}

TEST(Reflection, ListsTheServices) {
  const auto server = StartServer(TestOptions());
  for (const char* version : {"v1", "v1alpha"}) {
    const std::vector<std::string> services =
        Values(Ask(Connect(*server), kListServices, "", version), {kListResponse, 1, 1});
    EXPECT_THAT(services, ::testing::UnorderedElementsAre("attend.v1.AttentionService",
                                                          "attend.v1.InfoService", "grpc.health.v1.Health",
                                                          "grpc.reflection.v1alpha.ServerReflection"));
  }
}

TEST(Reflection, SaysWhatItDoesNotKnowAndGoesOn) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  // 5 is a message of its own, which these bytes are not; 9 is no question.
  for (const int field : {kFileByFilename, kFileContainingSymbol, kExtensionNumbers, 5, 9}) {
    EXPECT_EQ(Values(Ask(channel, field, "no.such.Thing"), {kErrorResponse, 2}).size(), 1u) << field;
  }
  EXPECT_EQ(Values(Ask(channel, kFileByFilename, "x"), {kOriginalRequest, kFileByFilename}),
            std::vector<std::string>{"x"});
  EXPECT_EQ(Values(Ask(channel, kExtensionNumbers, "attend.v1.AttendRequest"), {kNumbersResponse, 1}),
            std::vector<std::string>{"attend.v1.AttendRequest"});
}

TEST(Reflection, IsNotThereWhereItIsOff) {
  ServerOptions options = TestOptions();
  options.reflection = false;
  const auto server = StartServer(options);
  RawCall call(Connect(*server), ReflectionMethod());
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// A stream that its caller leaves open ends with the drain.
TEST(Reflection, DoesNotHoldUpADrain) {
  ServerOptions options = TestOptions();
  options.drain_timeout = absl::Minutes(5);  // beyond the test's own limit
  const auto server = StartServer(options);
  RawCall call(Connect(*server), ReflectionMethod());
  EXPECT_TRUE(server->Drain(absl::ZeroDuration()));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Everything that reflection tells of a symbol.
class Described {
 public:
  Described(std::shared_ptr<grpc::Channel> channel, const std::string& symbol)
      : channel_(std::move(channel)) {
    Add(kFileContainingSymbol, symbol);
  }
  const google::protobuf::DescriptorPool& pool() const { return pool_; }
  std::unique_ptr<google::protobuf::Message> New(const google::protobuf::Descriptor* type) {
    return std::unique_ptr<google::protobuf::Message>(factory_.GetPrototype(type)->New());
  }

 private:
  // The answer holds the file asked for first, and perhaps those that it imports.
  void Add(int question, const std::string& name) {
    std::string asked;
    for (const std::string& bytes : Values(Ask(channel_, question, name), {kFileResponse, 1})) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      if (asked.empty()) asked = file.name();
      files_[file.name()] = file;
    }
    ASSERT_TRUE(files_.contains(asked)) << name;
    Build(asked);
  }
  void Build(const std::string& name) {
    if (pool_.FindFileByName(name) != nullptr) return;
    if (!files_.contains(name)) return Add(kFileByFilename, name);
    for (const std::string& import : files_[name].dependency()) Build(import);
    ASSERT_NE(pool_.BuildFile(files_[name]), nullptr);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  std::map<std::string, google::protobuf::FileDescriptorProto> files_;
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
};

// Calls a method as grpcurl does: what it knows of it comes from reflection.
std::unique_ptr<google::protobuf::Message> Call(const std::shared_ptr<grpc::Channel>& channel,
                                                Described* described, const std::string& service,
                                                const std::string& name, const std::string& json) {
  const auto* method = described->pool().FindMethodByName(service + "." + name);
  EXPECT_NE(method, nullptr);
  if (method == nullptr) return nullptr;
  const auto request = described->New(method->input_type());
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request.get());
  EXPECT_TRUE(parsed.ok()) << parsed.ToString();

  RawCall call(channel, "/" + service + "/" + name);
  call.Write(request->SerializeAsString());
  call.WritesDone();
  const std::optional<std::string> reply = call.Read();
  EXPECT_TRUE(reply.has_value());
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  auto response = described->New(method->output_type());
  EXPECT_TRUE(response->ParseFromString(reply.value_or("")));
  return response;
}

std::vector<float> Floats(const google::protobuf::Message& message, const std::string& field) {
  const auto* descriptor = message.GetDescriptor()->FindFieldByName(field);
  const std::string bytes = message.GetReflection()->GetString(message, descriptor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// The README's grpcurl example: a query of zeros over two keys, so that its weights are a half each, whatever
// the keys are.
TEST(Reflection, IsAllThatACallerNeeds) {
  ServerOptions options = TestOptions();
  options.device = "cpu";
  const auto server = StartServer(options);
  const auto channel = Connect(*server);
  std::ifstream file("deploy/request.json");
  const std::string json{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Described described(channel, "attend.v1.AttentionService");
  const auto response = Call(channel, &described, "attend.v1.AttentionService", "Attend", json);
  ASSERT_NE(response, nullptr);
  EXPECT_THAT(Floats(*response, "out_data"), ElementsAre(2, 2, 2, 2, 2, 2, 2, 2));  // the mean of 1 and 3
  EXPECT_THAT(Floats(*response, "lse_data"), ElementsAre(FloatNear(std::log(2.0f), 1e-6f)));
  std::string text;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(*response, &text).ok());
  EXPECT_THAT(text, HasSubstr(R"("outData":"AAAAQAAAAEAAAABAAAAAQAAAAEAAAABAAAAAQAAAAEA=")"));
}

TEST(Reflection, TellsOfHealthToo) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  Described described(channel, "grpc.health.v1.Health");
  const auto response = Call(channel, &described, "grpc.health.v1.Health", "Check",
                             R"({"service": "attend.v1.AttentionService"})");
  ASSERT_NE(response, nullptr);
  std::string text;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(*response, &text).ok());
  EXPECT_EQ(text, R"({"status":"SERVING"})");
}

}  // namespace
}  // namespace attend::server
