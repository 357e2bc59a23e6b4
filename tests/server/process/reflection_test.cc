// A caller that knows nothing but the address, as grpcurl: it learns the method from reflection, makes the
// request from JSON, and reads the reply as JSON. The generic service must not be in reflection's way.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/process/fixture.h"

namespace attend::server {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Field numbers of grpc.reflection.v1alpha.
constexpr int kFileByFilename = 3, kFileContainingSymbol = 4, kListServices = 7;  // in the request
constexpr int kFileResponse = 4, kListResponse = 6;                               // in the response

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

void Step(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue->Next(&tag, &ok));
}

// One question to reflection.
std::string Ask(const std::shared_ptr<grpc::Channel>& channel, int field, const std::string& value) {
  UnknownFieldSet question;
  question.AddLengthDelimited(field, value);
  std::string bytes;
  question.SerializeToString(&bytes);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  stream->StartCall(nullptr);
  Step(&queue);
  stream->Write(ToBuffer(bytes), nullptr);
  Step(&queue);
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  Step(&queue);
  stream->WritesDone(nullptr);
  Step(&queue);
  grpc::Status status;
  stream->Finish(&status, nullptr);
  Step(&queue);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ToString(answer);
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
  const std::vector<std::string> services =
      Values(Ask(Connect(*server), kListServices, ""), {kListResponse, 1, 1});
  EXPECT_THAT(services, ::testing::IsSupersetOf({"attend.v1.AttentionService", "attend.v1.InfoService",
                                                 "grpc.health.v1.Health"}));
}

TEST(Reflection, IsAllThatACallerNeeds) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  google::protobuf::DescriptorPool pool;
  const std::string file =
      Values(Ask(channel, kFileContainingSymbol, "attend.v1.AttentionService"), {kFileResponse, 1}).at(0);
  google::protobuf::FileDescriptorProto descriptor;
  ASSERT_TRUE(descriptor.ParseFromString(file));
  for (const std::string& import : descriptor.dependency()) {
    google::protobuf::FileDescriptorProto imported;
    ASSERT_TRUE(
        imported.ParseFromString(Values(Ask(channel, kFileByFilename, import), {kFileResponse, 1}).at(0)));
    ASSERT_NE(pool.BuildFile(imported), nullptr);
  }
  ASSERT_NE(pool.BuildFile(descriptor), nullptr);
  const auto* method = pool.FindMethodByName("attend.v1.AttentionService.Attend");
  ASSERT_NE(method, nullptr);

  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<google::protobuf::Message> request(factory.GetPrototype(method->input_type())->New());
  const char* json = R"({"q": {"dtype": "DATA_TYPE_FP16", "shape": [1, 1, 1, 8]},
                         "k": {"dtype": "DATA_TYPE_FP16", "shape": [1, 1, 1, 8]},
                         "v": {"dtype": "DATA_TYPE_FP16", "shape": [1, 1, 1, 8]},
                         "q_data": "AAAAAAAAAAAAAAAAAAAAAA==", "k_data": "AAAAAAAAAAAAAAAAAAAAAA==",
                         "v_data": "AAAAAAAAAAAAAAAAAAAAAA=="})";
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, request.get()).ok());

  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/attend.v1.AttentionService/Attend",
                                          ToBuffer(request->SerializeAsString()), &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  Step(&queue);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::unique_ptr<google::protobuf::Message> response(
      factory.GetPrototype(method->output_type())->New());
  ASSERT_TRUE(response->ParseFromString(ToString(reply)));
  std::string text;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(*response, &text).ok());
  EXPECT_THAT(text, ::testing::HasSubstr(R"("outData":"AAAAAAAAAAAAAAAAAAAAAA==")"));
}

}  // namespace
}  // namespace attend::server
