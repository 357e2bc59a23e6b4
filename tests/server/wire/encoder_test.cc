// Replies: what protobuf reads from our slices, and that they alias the output block while they live.
#include "server/wire/encoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/support/slice.h"
#include "server/wire/decoder.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

// A finished job for the call of this request, its outputs filled with bytes that tell where they are.
std::unique_ptr<Job> Finished(const Call& call, TestPool* pool) {
  auto job = std::make_unique<Job>();
  job->call = call;
  job->outputs = *pool->Allocate(OutputBytes(call));
  for (int64_t i = 0; i < job->outputs.size(); ++i)
    job->outputs.data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  PlaceOutputs(call, job->outputs.data(), &job->tensors);
  return job;
}

std::string Take(const void* data, int64_t bytes) {
  return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
}

std::vector<int64_t> Shape(const v1::TensorSpec& spec) { return {spec.shape().begin(), spec.shape().end()}; }

Call DenseCall() {
  Call call;
  call.dtype = DataType::kBf16;
  call.batch = 2;
  call.q_heads = 4;
  call.kv_heads = 2;
  call.head_dim = 8;
  call.v_head_dim = 16;
  call.q_len = 3;
  call.kv_len = 5;
  call.return_lse = true;
  call.return_weights = true;
  return call;
}

v1::AttendResponse Parse(const grpc::ByteBuffer& buffer) {
  v1::AttendResponse response;
  EXPECT_TRUE(response.ParseFromString(Flatten(buffer)));
  EXPECT_TRUE(response.GetReflection()->GetUnknownFields(response).empty());
  return response;
}

TEST(Encoder, ProtobufReadsTensorsAndSpecs) {
  TestPool pool;
  const Call call = DenseCall();
  auto job = Finished(call, &pool);
  const std::string out = Take(job->tensors.out, call.out_bytes());
  const std::string lse = Take(job->tensors.lse, call.lse_bytes());
  const std::string weights = Take(job->tensors.weights, call.weights_bytes());
  const v1::AttendResponse r = Parse(EncodeResponse(*job));
  EXPECT_EQ(r.out().dtype(), v1::DATA_TYPE_BF16);
  EXPECT_EQ(Shape(r.out()), (std::vector<int64_t>{2, 4, 3, 16}));
  EXPECT_EQ(r.lse().dtype(), v1::DATA_TYPE_FP32);
  EXPECT_EQ(Shape(r.lse()), (std::vector<int64_t>{2, 4, 3}));
  EXPECT_EQ(Shape(r.weights()), (std::vector<int64_t>{2, 4, 3, 5}));
  EXPECT_EQ(r.out_data(), out);
  EXPECT_EQ(r.lse_data(), lse);
  EXPECT_EQ(r.weights_data(), weights);
}

TEST(Encoder, ShapesFollowTheLayout) {
  TestPool pool;
  Call call = DenseCall();
  call.return_weights = false;
  call.weight_rows = {1};
  call.layout = Layout::kBlhd;
  v1::AttendResponse r = Parse(EncodeResponse(*Finished(call, &pool)));
  EXPECT_EQ(Shape(r.out()), (std::vector<int64_t>{2, 3, 4, 16}));
  EXPECT_EQ(Shape(r.lse()), (std::vector<int64_t>{2, 4, 3}));
  EXPECT_EQ(Shape(r.weights()), (std::vector<int64_t>{2, 4, 1, 5}));
  call.layout = Layout::kPacked;
  call.weight_rows.clear();
  call.q_lengths = {1, 2};
  call.kv_lengths = {5, 0};
  r = Parse(EncodeResponse(*Finished(call, &pool)));
  EXPECT_EQ(Shape(r.out()), (std::vector<int64_t>{3, 4, 16}));
  EXPECT_EQ(Shape(r.lse()), (std::vector<int64_t>{4, 3}));
  EXPECT_FALSE(r.has_weights());
}

TEST(Encoder, ReportsWhatRan) {
  TestPool pool;
  auto job = Finished(DenseCall(), &pool);
  job->report.kernel = Kernel::kOnline;
  job->report.device = "cpu";
  job->report.work.flops = 1;
  job->report.work.read_bytes = 2;
  job->report.work.write_bytes = 3;
  job->report.work.tile_bytes = 4;
  job->report.work.corrections = 5;
  job->report.work.correction_flops = 6;
  job->report.queue_ns = 7;
  job->report.copy_in_ns = 8;
  job->report.kernel_ns = 9;
  job->report.copy_out_ns = 10;
  job->report.batch_requests = 11;
  const v1::Report report = Parse(EncodeResponse(*job)).report();
  EXPECT_EQ(
      report.ShortDebugString(),
      "kernel: KERNEL_ONLINE device: \"cpu\" flops: 1 hbm_read_bytes: 2 hbm_write_bytes: 3 tile_bytes: 4 "
      "corrections: 5 correction_flops: 6 queue_ns: 7 copy_in_ns: 8 kernel_ns: 9 copy_out_ns: 10 "
      "batch_requests: 11");
}

TEST(Encoder, SlicesAliasTheBlockUntilTheLastIsDropped) {
  TestPool pool;
  auto job = Finished(DenseCall(), &pool);
  const auto* out = static_cast<const uint8_t*>(job->tensors.out);
  const int64_t held = pool.used_bytes();
  grpc::ByteBuffer buffer = EncodeResponse(*job);
  job.reset();
  EXPECT_EQ(pool.used_bytes(), held);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [out](const grpc::Slice& s) {
    return s.begin() == out;
  })) << "not copied";
  buffer.Clear();
  EXPECT_EQ(pool.used_bytes(), held);
  while (slices.size() > 1) slices.erase(slices.begin());  // weights, the last
  EXPECT_EQ(pool.used_bytes(), held);
  slices.clear();
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(Encoder, AnEmptyReplyGivesTheBlockBackAtOnce) {
  TestPool pool;
  Call call = DenseCall();
  call.batch = 0;
  const grpc::ByteBuffer buffer = EncodeResponse(*Finished(call, &pool));
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(Shape(Parse(buffer).out()), (std::vector<int64_t>{0, 4, 3, 16}));
}

TEST(Encoder, HeaderStaysWithinWhatTheValidatorLeavesFor) {
  TestPool pool;
  auto job = Finished(DenseCall(), &pool);
  job->report.device = std::string(64, 'd');
  job->report.work.flops = job->report.work.read_bytes = job->report.work.write_bytes = INT64_MAX;
  job->report.queue_ns = job->report.kernel_ns = INT64_MAX;
  const Call& call = job->call;
  const int64_t tensors = call.out_bytes() + call.lse_bytes() + call.weights_bytes();
  EXPECT_LE(static_cast<int64_t>(EncodeResponse(*job).Length()), tensors + 4096);
}

}  // namespace
}  // namespace attend::server
