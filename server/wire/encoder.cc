#include "server/wire/encoder.h"

#include <atomic>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "attend/v1/attention.pb.h"
#include "google/protobuf/arena.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/slice.h"

namespace attend::server {
namespace {

using google::protobuf::io::CodedOutputStream;
using Response = v1::AttendResponse;

v1::DataType ToProto(DataType dtype) {
  switch (dtype) {
    case DataType::kFp32:
      return v1::DATA_TYPE_FP32;
    case DataType::kFp16:
      return v1::DATA_TYPE_FP16;
    case DataType::kBf16:
      return v1::DATA_TYPE_BF16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::Kernel ToProto(Kernel kernel) {
  switch (kernel) {
    case Kernel::kAuto:
      return v1::KERNEL_AUTO;
    case Kernel::kNaive:
      return v1::KERNEL_NAIVE;
    case Kernel::kOnline:
      return v1::KERNEL_ONLINE;
    case Kernel::kFlash:
      return v1::KERNEL_FLASH;
  }
  return v1::KERNEL_UNSPECIFIED;
}

void SetSpec(v1::DataType dtype, std::initializer_list<int64_t> shape, v1::TensorSpec* spec) {
  spec->set_dtype(dtype);
  for (const int64_t size : shape) spec->add_shape(size);
}

void SetSpecs(const Call& c, Response* response) {
  v1::TensorSpec* out = response->mutable_out();
  switch (c.layout) {
    case Layout::kBhld:
      SetSpec(ToProto(c.dtype), {c.batch, c.q_heads, c.q_len, c.v_head_dim}, out);
      break;
    case Layout::kBlhd:
      SetSpec(ToProto(c.dtype), {c.batch, c.q_len, c.q_heads, c.v_head_dim}, out);
      break;
    case Layout::kPacked:
      SetSpec(ToProto(c.dtype), {c.q_len, c.q_heads, c.v_head_dim}, out);
      break;
  }
  if (c.return_lse && c.layout == Layout::kPacked) {
    SetSpec(v1::DATA_TYPE_FP32, {c.q_heads, c.q_len}, response->mutable_lse());
  } else if (c.return_lse) {
    SetSpec(v1::DATA_TYPE_FP32, {c.batch, c.q_heads, c.q_len}, response->mutable_lse());
  }
  if (c.return_weights || !c.weight_rows.empty()) {
    const int64_t rows = c.return_weights ? c.q_len : static_cast<int64_t>(c.weight_rows.size());
    SetSpec(v1::DATA_TYPE_FP32, {c.batch, c.q_heads, rows, c.kv_len}, response->mutable_weights());
  }
}

void SetReport(const JobReport& from, v1::Report* report) {
  report->set_kernel(ToProto(from.kernel));
  report->set_device(from.device);
  report->set_flops(from.work.flops);
  report->set_hbm_read_bytes(from.work.read_bytes);
  report->set_hbm_write_bytes(from.work.write_bytes);
  report->set_tile_bytes(from.work.tile_bytes);
  report->set_corrections(from.work.corrections);
  report->set_correction_flops(from.work.correction_flops);
  report->set_queue_ns(from.queue_ns);
  report->set_copy_in_ns(from.copy_in_ns);
  report->set_kernel_ns(from.kernel_ns);
  report->set_copy_out_ns(from.copy_out_ns);
  report->set_batch_requests(from.batch_requests);
}

// What the specs and the report of a reply take in memory, about twice.
constexpr size_t kHeaderMemory = 2048;

// The output block while slices alias it.
struct SharedBlock {
  HostBlock block;
  std::atomic<int> slices;

  static void Drop(void* shared) {
    auto* self = static_cast<SharedBlock*>(shared);
    if (self->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete self;
  }
};

struct DataField {
  int number;
  const void* data;
  int64_t bytes;
};

// Tag and size of a bytes field: what goes before its data.
void AppendHeader(int number, int64_t bytes, std::string* to) {
  uint8_t buffer[16];
  constexpr uint32_t kBytesWireType = 2;
  uint8_t* end =
      CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(number) << 3 | kBytesWireType, buffer);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(bytes), end);
  to->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(end - buffer));
}

}  // namespace

grpc::ByteBuffer EncodeResponse(Job& job) {
  const Call& call = job.call;
  // The header's parts lie on the stack: to take each from the heap costs a small reply more than to fill it.
  alignas(8) char memory[kHeaderMemory];
  google::protobuf::ArenaOptions options;
  options.initial_block = memory;
  options.initial_block_size = sizeof(memory);
  google::protobuf::Arena arena(options);
  Response& header = *google::protobuf::Arena::CreateMessage<Response>(&arena);
  SetSpecs(call, &header);
  SetReport(job.report, header.mutable_report());
  std::string text = header.SerializeAsString();

  absl::InlinedVector<DataField, 3> fields;
  const auto add = [&fields](int number, const void* data, int64_t bytes) {
    if (bytes > 0) fields.push_back({number, data, bytes});
  };
  add(Response::kOutDataFieldNumber, job.tensors.out, call.out_bytes());
  add(Response::kLseDataFieldNumber, job.tensors.lse, call.lse_bytes());
  add(Response::kWeightsDataFieldNumber, job.tensors.weights, call.weights_bytes());

  absl::InlinedVector<grpc::Slice, 7> slices;  // two a field, and the rest
  auto* shared = new SharedBlock{std::move(job.outputs), static_cast<int>(fields.size()) + 1};
  for (const DataField& field : fields) {
    AppendHeader(field.number, field.bytes, &text);
    slices.emplace_back(text.data(), text.size());
    text.clear();
    slices.emplace_back(const_cast<void*>(field.data), static_cast<size_t>(field.bytes), &SharedBlock::Drop,
                        shared);
  }
  if (!text.empty()) slices.emplace_back(text.data(), text.size());
  SharedBlock::Drop(shared);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attend::server
