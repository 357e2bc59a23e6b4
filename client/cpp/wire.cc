#include "client/cpp/wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attend/v1/attention.pb.h"
#include "client/cpp/status_internal.h"

namespace attend {
inline namespace client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Below this, a copy is cheaper than a slice of its own.
constexpr size_t kCopyBytesMax = 1024;

// Tag and length of a bytes field.
std::string FieldHeader(int field, size_t bytes) {
  std::string header;
  google::protobuf::io::StringOutputStream stream(&header);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint32(static_cast<uint32_t>(bytes));
  out.Trim();
  return header;
}

void SetSpec(const TensorView& view, v1::TensorSpec* spec) {
  spec->set_dtype(static_cast<v1::DataType>(view.dtype));
  spec->mutable_shape()->Add(view.shape.begin(), view.shape.end());
}

// All fields but the tensor bytes.
v1::AttendRequest Specs(const Request& request) {
  v1::AttendRequest message;
  SetSpec(request.q, message.mutable_q());
  SetSpec(request.k, message.mutable_k());
  SetSpec(request.v, message.mutable_v());
  message.set_layout(static_cast<v1::Layout>(request.layout));
  message.set_kernel(static_cast<v1::Kernel>(request.kernel));
  message.set_causal(static_cast<v1::CausalMode>(request.causal));
  if (request.scale) message.set_scale(*request.scale);
  if (request.softcap) message.set_softcap(*request.softcap);
  if (request.window_left) message.set_window_left(*request.window_left);
  if (request.window_right) message.set_window_right(*request.window_right);
  message.mutable_q_lengths()->Add(request.q_lengths.begin(), request.q_lengths.end());
  message.mutable_kv_lengths()->Add(request.kv_lengths.begin(), request.kv_lengths.end());
  if (request.bias) SetSpec(*request.bias, message.mutable_bias());
  if (request.mask) SetSpec(*request.mask, message.mutable_mask());
  if (request.alibi_slopes) SetSpec(*request.alibi_slopes, message.mutable_alibi_slopes());
  if (request.sinks) SetSpec(*request.sinks, message.mutable_sinks());
  message.set_return_lse(request.return_lse);
  message.set_return_weights(request.return_weights);
  message.mutable_weight_rows()->Add(request.weight_rows.begin(), request.weight_rows.end());
  return message;
}

struct NamedTensor {
  const char* name;
  int data_field;
  const TensorView* view;
};

std::vector<NamedTensor> Tensors(const Request& request) {
  using R = v1::AttendRequest;
  std::vector<NamedTensor> tensors = {{"q", R::kQDataFieldNumber, &request.q},
                                      {"k", R::kKDataFieldNumber, &request.k},
                                      {"v", R::kVDataFieldNumber, &request.v}};
  if (request.bias) tensors.push_back({"bias", R::kBiasDataFieldNumber, &*request.bias});
  if (request.mask) tensors.push_back({"mask", R::kMaskDataFieldNumber, &*request.mask});
  if (request.alibi_slopes) {
    tensors.push_back({"alibi_slopes", R::kAlibiSlopesDataFieldNumber, &*request.alibi_slopes});
  }
  if (request.sinks) tensors.push_back({"sinks", R::kSinksDataFieldNumber, &*request.sinks});
  return tensors;
}

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// Checks the results that the request will have: buffers of their size, and a message that can carry them.
void CheckResults(const Request& request, const ResultBuffers& buffers, int64_t bytes_max,
                  const ResponseShapes& shapes, std::vector<Violation>& violations) {
  int64_t total = 0;
  const auto check = [&](const char* name, DataType dtype, const std::optional<Shape>& shape,
                         absl::Span<std::byte> buffer) {
    if (!shape) {
      // Shapes too wrong to tell are the server's to explain, once the response is parsed.
      if (!buffer.empty() && shapes.out) {
        violations.push_back({name, "a buffer is given for a result that the request does not ask for"});
      }
      return;
    }
    const absl::StatusOr<int64_t> bytes = ByteSize(dtype, *shape);
    if (!bytes.ok()) return;  // so is q's or v's, which the server explains
    total = SaturatingAdd(total, *bytes);
    if (!buffer.empty() && static_cast<int64_t>(buffer.size()) != *bytes) {
      violations.push_back({name, absl::StrCat("the result ", ToString(*shape), " has ", *bytes,
                                               " bytes, the buffer for it ", buffer.size())});
    }
  };
  check("out", request.q.dtype, shapes.out, buffers.out);
  check("lse", DataType::kFp32, shapes.lse, buffers.lse);
  check("weights", DataType::kFp32, shapes.weights, buffers.weights);
  if (total > bytes_max) {
    violations.push_back(
        {shapes.weights ? "weights" : "out",
         absl::StrCat("the response would have ", total, " bytes; a message carries at most ", bytes_max)});
  }
}

}  // namespace

grpc::Slice SliceCount::Alias(const void* data, size_t bytes) const {
  if (bytes <= kCopyBytesMax) return grpc::Slice(data, bytes);
  count_->fetch_add(1, std::memory_order_relaxed);
  // The slice owns a reference to the count, so that it may outlive the call.
  auto* count = new std::shared_ptr<std::atomic<int64_t>>(count_);
  return grpc::Slice(
      const_cast<void*>(data), bytes,  // gRPC does not write to what it sends
      [](void* arg) {
        auto* held = static_cast<std::shared_ptr<std::atomic<int64_t>>*>(arg);
        (*held)->fetch_sub(1, std::memory_order_release);
        delete held;
      },
      count);
}

absl::StatusOr<EncodedRequest> EncodedRequest::Make(const Request& request, const ResultBuffers& buffers,
                                                    int64_t bytes_max) {
  std::vector<Violation> violations;
  EncodedRequest encoded;
  std::string header = Specs(request).SerializeAsString();
  int64_t total = static_cast<int64_t>(header.size());
  for (const NamedTensor& tensor : Tensors(request)) {
    const absl::StatusOr<int64_t> bytes = ByteSize(tensor.view->dtype, tensor.view->shape);
    if (!bytes.ok()) {
      violations.push_back({absl::StrCat(tensor.name, ".shape"), std::string(bytes.status().message())});
      continue;
    }
    if (*bytes == 0) continue;
    if (tensor.view->data == nullptr) {
      violations.push_back(
          {tensor.name, absl::StrCat("data is null, the shape ", ToString(tensor.view->shape), " has ",
                                     *bytes, " bytes")});
      continue;
    }
    total = SaturatingAdd(total, *bytes);
    if (total > bytes_max) continue;  // said once, below
    header += FieldHeader(tensor.data_field, static_cast<size_t>(*bytes));
    encoded.parts_.push_back({std::exchange(header, ""), tensor.view->data, static_cast<size_t>(*bytes)});
  }
  if (total > bytes_max) {
    violations.push_back({"q", absl::StrCat("the tensors have ", total,
                                            " bytes in all; a message carries at most ", bytes_max)});
  }
  encoded.expected_ = ExpectedShapes(request);
  CheckResults(request, buffers, bytes_max, encoded.expected_, violations);
  if (!violations.empty()) return InvalidRequest(violations);
  if (!header.empty()) encoded.parts_.push_back({std::move(header), nullptr, 0});
  for (const Part& part : encoded.parts_) {
    encoded.bytes_ += static_cast<int64_t>(part.header.size() + part.bytes);
  }
  return encoded;
}

grpc::ByteBuffer EncodedRequest::Encode(const SliceCount& slices) const {
  std::vector<grpc::Slice> list;
  list.reserve(2 * parts_.size());
  for (const Part& part : parts_) {
    list.emplace_back(part.header);
    if (part.bytes > 0) list.push_back(slices.Alias(part.data, part.bytes));
  }
  return grpc::ByteBuffer(list.data(), list.size());
}

namespace {

// One result tensor on its way in: its spec and its bytes, in whichever order they come.
struct Incoming {
  const char* name;
  absl::Span<std::byte> buffer;
  std::optional<v1::TensorSpec> spec;
  std::unique_ptr<std::byte[]> owned;
  int64_t bytes = 0;

  absl::Status Read(CodedInputStream& stream, int64_t message_bytes) {
    uint32_t length = 0;
    // More than the whole message: not to be believed, let alone allocated.
    if (!stream.ReadVarint32(&length) || length > message_bytes) {
      return absl::InternalError(absl::StrCat("the response's ", name, "_data is cut short"));
    }
    if (!buffer.empty() && buffer.size() != length) {
      return absl::InternalError(absl::StrCat("the response's ", name, " has ", length,
                                              " bytes, the buffer for it ", buffer.size()));
    }
    std::byte* target = buffer.data();
    if (buffer.empty()) {
      owned = std::make_unique_for_overwrite<std::byte[]>(length);
      target = owned.get();
    }
    bytes = length;
    if (!stream.ReadRaw(target, static_cast<int>(length))) {
      return absl::InternalError(absl::StrCat("the response's ", name, "_data is cut short"));
    }
    return absl::OkStatus();
  }

  // The tensor, once everything is read.
  absl::StatusOr<Tensor> Take(const std::optional<Shape>& wanted) {
    const auto dtype = static_cast<DataType>(spec->dtype());
    Shape shape(spec->shape().begin(), spec->shape().end());
    const absl::StatusOr<int64_t> expected = ByteSize(dtype, shape);
    if (!expected.ok() || *expected != bytes) {
      return absl::InternalError(
          absl::StrCat("the response's ", name, " ", ToString(shape), " comes with ", bytes, " bytes"));
    }
    if (wanted && shape != *wanted) {
      return absl::InternalError(
          absl::StrCat("the response's ", name, " is ", ToString(shape), ", not ", ToString(*wanted)));
    }
    if (!buffer.empty()) return Tensor(dtype, std::move(shape), buffer);
    if (owned == nullptr) return Tensor(dtype, std::move(shape), 0);
    return Tensor(dtype, std::move(shape), std::move(owned), bytes);
  }
};

template <typename Message>
bool ReadMessage(CodedInputStream& stream, Message& message) {
  return WireFormatLite::ReadMessage(&stream, &message);
}

Report ToReport(const v1::Report& r) {
  Report report;
  report.kernel = static_cast<Kernel>(r.kernel());
  report.device = r.device();
  report.flops = r.flops();
  report.hbm_read_bytes = r.hbm_read_bytes();
  report.hbm_write_bytes = r.hbm_write_bytes();
  report.tile_bytes = r.tile_bytes();
  report.corrections = r.corrections();
  report.correction_flops = r.correction_flops();
  report.queue_ns = r.queue_ns();
  report.copy_in_ns = r.copy_in_ns();
  report.kernel_ns = r.kernel_ns();
  report.copy_out_ns = r.copy_out_ns();
  report.batch_requests = r.batch_requests();
  return report;
}

// Reads one field. False, with status OK, where the stream ends here.
absl::StatusOr<bool> ReadField(CodedInputStream& stream, int64_t message_bytes, Incoming* tensors,
                               v1::Report& report) {
  using R = v1::AttendResponse;
  const uint32_t tag = stream.ReadTag();
  if (tag == 0) return false;
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  const bool delimited = WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  bool ok = true;
  if (delimited && field >= R::kOutFieldNumber && field <= R::kWeightsFieldNumber) {
    std::optional<v1::TensorSpec>& spec = tensors[field - R::kOutFieldNumber].spec;
    if (!spec) spec.emplace();
    ok = ReadMessage(stream, *spec);
  } else if (delimited && field >= R::kOutDataFieldNumber && field <= R::kWeightsDataFieldNumber) {
    const absl::Status status = tensors[field - R::kOutDataFieldNumber].Read(stream, message_bytes);
    if (!status.ok()) return status;
  } else if (delimited && field == R::kReportFieldNumber) {
    ok = ReadMessage(stream, report);
  } else {
    // A newer server may say more than we know; a result that we asked for is never among it.
    ok = WireFormatLite::SkipField(&stream, tag);
  }
  if (!ok) return absl::InternalError("the response is not an attend.v1.AttendResponse");
  return true;
}

}  // namespace

absl::StatusOr<Response> DecodeResponse(grpc::ByteBuffer& message, const ResponseShapes& expected,
                                        const ResultBuffers& buffers) {
  Incoming tensors[] = {{"out", buffers.out, {}, {}, 0},
                        {"lse", buffers.lse, {}, {}, 0},
                        {"weights", buffers.weights, {}, {}, 0}};
  v1::Report report;
  const auto message_bytes = static_cast<int64_t>(message.Length());
  {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream stream(&reader);
    stream.SetTotalBytesLimit(std::numeric_limits<int>::max());
    for (bool more = true; more;) {
      absl::StatusOr<bool> field = ReadField(stream, message_bytes, tensors, report);
      if (!field.ok()) return field.status();
      more = *field;
    }
    if (!stream.ConsumedEntireMessage()) {
      return absl::InternalError("the response is not an attend.v1.AttendResponse");
    }
  }
  message.Clear();

  Response response;
  response.report = ToReport(report);
  const std::optional<Shape>* const wanted[] = {&expected.out, &expected.lse, &expected.weights};
  std::optional<Tensor> taken[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!tensors[i].spec) {
      if (i == 0 || *wanted[i] || tensors[i].bytes > 0) {
        return absl::InternalError(absl::StrCat("the response has no ", tensors[i].name));
      }
      continue;
    }
    absl::StatusOr<Tensor> tensor = tensors[i].Take(*wanted[i]);
    if (!tensor.ok()) return tensor.status();
    taken[i] = *std::move(tensor);
  }
  response.out = *std::move(taken[0]);
  response.lse = std::move(taken[1]);
  response.weights = std::move(taken[2]);
  return response;
}

}  // namespace client
}  // namespace attend
