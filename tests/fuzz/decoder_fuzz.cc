// Whatever the bytes: the decoder does not crash or read out of bounds, and where protobuf's own parser
// reads a request, the decoder reads the same request, refuses it for the same reasons, or copies the same
// tensor bytes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/call.h"
#include "server/wire/decoder.h"
#include "server/wire/encoder.h"
#include "server/wire/request_fields.h"
#include "server/wire/slice_stream.h"
#include "server/wire/validate.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

void Require(bool holds, const char* what, const std::string& detail = "") {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n%s\n", what, detail.c_str());
  std::abort();
}

// Small, so that inputs of a few hundred bytes reach them.
DecodeLimits Limits() {
  DecodeLimits limits;
  limits.request_bytes_max = 4000;
  limits.response_bytes_max = 1 << 20;
  limits.batch_max = 16;
  limits.heads_max = 64;
  limits.weight_rows_max = 16;
  return limits;
}

// Cuts that depend on the input alone.
uint64_t Seed(absl::string_view input) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : input) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}

// The reader against protobuf's parser. Whether protobuf reads the input and knows every field.
bool CompareFields(absl::string_view input, const v1::AttendRequest& oracle, bool parsed, Rng& rng) {
  std::vector<grpc::Slice> slices;
  grpc::ByteBuffer buffer = CutIntoSlices(input, rng);
  Require(buffer.Dump(&slices).ok(), "a buffer gives its slices");
  SliceStream stream(std::move(slices));
  RequestFields fields;
  ViolationList violations;
  const bool read = ReadRequestFields(&stream, stream.size(), Limits(), &fields, &violations);
  const bool known = parsed && !HasUnknownFields(oracle);
  Require(!read || parsed, "what protobuf cannot read is not read");
  Require(read || !known, "what protobuf can read and knows is read");
  Require(read || !violations.empty(), "what is not read is said");
  if (read) {
    Require(violations.empty() == known, "unknown fields are said, and known ones are not");
    Require(Describe(fields) == Describe(FieldsOf(oracle, Limits())), "fields are protobuf's",
            Describe(fields) + "\n" + Describe(FieldsOf(oracle, Limits())));
  }
  return known;
}

absl::string_view View(const void* data, int64_t bytes) {
  return {static_cast<const char*>(data), static_cast<size_t>(bytes)};
}

// A call that was found valid: its tensors' bytes, its problems, its reply.
void CompareTensors(AttendDecoder& decoder, const v1::AttendRequest& oracle) {
  const Call& call = decoder.call();
  TestPool pool;
  Job job;
  const HostBlock inputs = *pool.Allocate(decoder.input_bytes());
  const absl::Status status = decoder.ReadTensors(inputs, &job.tensors);
  bool bad_mask = false;
  for (const char c : oracle.mask_data()) bad_mask |= static_cast<uint8_t>(c) > 1;
  Require(status.ok() == !bad_mask, "tensors are read unless the mask is none", status.ToString());
  if (!status.ok()) return;
  const CallTensors& t = job.tensors;
  Require(View(t.q, call.q_bytes()) == oracle.q_data(), "q");
  Require(View(t.k, call.k_bytes()) == oracle.k_data(), "k");
  Require(View(t.v, call.v_bytes()) == oracle.v_data(), "v");
  Require(View(t.bias, call.bias_bytes()) == oracle.bias_data(), "bias");
  Require(View(t.mask, call.mask_bytes()) == oracle.mask_data(), "mask");
  Require(View(t.alibi_slopes, call.alibi_bytes()) == oracle.alibi_slopes_data(), "alibi_slopes");
  Require(View(t.sinks, call.sinks_bytes()) == oracle.sinks_data(), "sinks");

  job.call = call;
  job.outputs = *pool.Allocate(OutputBytes(call));
  std::fill_n(job.outputs.data(), job.outputs.size(), std::byte{7});
  PlaceOutputs(call, job.outputs.data(), &job.tensors);
  const std::vector<Problem> problems = MakeProblems(call, job.tensors);
  const absl::Status launch = CheckLaunch(MakeLaunch(call, problems));
  Require(launch.ok(), "a valid request is a valid launch", launch.ToString());
  v1::AttendResponse response;
  Require(response.ParseFromString(Flatten(EncodeResponse(job))), "protobuf reads the reply");
  Require(response.out_data() == std::string(static_cast<size_t>(call.out_bytes()), 7), "out");
  Require(response.lse_data().size() == static_cast<size_t>(call.lse_bytes()), "lse");
  Require(response.weights_data().size() == static_cast<size_t>(call.weights_bytes()), "weights");
}

void Fuzz(absl::string_view input) {
  Rng rng(Seed(input));
  v1::AttendRequest oracle;
  const bool parsed = oracle.ParseFromArray(input.data(), static_cast<int>(input.size()));
  const bool known = CompareFields(input, oracle, parsed, rng);

  grpc::ByteBuffer buffer = CutIntoSlices(input, rng);
  AttendDecoder decoder(&buffer, Limits());
  const absl::Status status = decoder.ReadSpecs();
  Require(status.ok() || status.code() == absl::StatusCode::kInvalidArgument, "faults are the caller's");
  const grpc::Status reply = ToGrpcStatus(status);
  Require(reply.error_details().size() < 6000 && reply.error_message().size() < 1024, "errors are short");
  if (!known || static_cast<int64_t>(input.size()) > Limits().request_bytes_max) {
    Require(!status.ok(), "what is not a request, or too large, is refused");
    return;
  }
  Call call;
  ViolationList violations;
  ValidateRequest(FieldsOf(oracle, Limits()), Limits(), &call, &violations);
  const absl::Status expected = violations.Take();
  Require(status == expected, "verdicts agree", status.ToString() + "\n" + expected.ToString());
  if (!status.ok()) return;
  Require(Describe(decoder.call()) == Describe(call), "calls agree", Describe(decoder.call()));
  CompareTensors(decoder, oracle);
}

}  // namespace
}  // namespace attend::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attend::server::Fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
