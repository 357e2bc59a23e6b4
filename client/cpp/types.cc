#include "attend/types.h"

#include <bit>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attend {
inline namespace client {

static_assert(std::endian::native == std::endian::little,
              "tensors travel as little-endian bytes straight from the caller's memory");

int64_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFp32:
      return 4;
    case DataType::kFp16:
    case DataType::kBf16:
      return 2;
    case DataType::kBool:
      return 1;
  }
  return 0;
}

absl::string_view Name(DataType dtype) {
  switch (dtype) {
    case DataType::kFp32:
      return "fp32";
    case DataType::kFp16:
      return "fp16";
    case DataType::kBf16:
      return "bf16";
    case DataType::kBool:
      return "bool";
  }
  return "unknown";
}

absl::string_view Name(Kernel kernel) {
  switch (kernel) {
    case Kernel::kAuto:
      return "auto";
    case Kernel::kNaive:
      return "naive";
    case Kernel::kOnline:
      return "online";
    case Kernel::kFlash:
      return "flash";
  }
  return "unknown";
}

absl::string_view Name(Layout layout) {
  switch (layout) {
    case Layout::kBhld:
      return "bhld";
    case Layout::kBlhd:
      return "blhd";
    case Layout::kPacked:
      return "packed";
  }
  return "unknown";
}

absl::string_view Name(Causal causal) {
  switch (causal) {
    case Causal::kNone:
      return "none";
    case Causal::kBottomRight:
      return "bottom-right";
    case Causal::kTopLeft:
      return "top-left";
  }
  return "unknown";
}

std::string ToString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ","), "]"); }

absl::StatusOr<int64_t> ByteSize(DataType dtype, const Shape& shape) {
  int64_t bytes = SizeOf(dtype);
  if (bytes == 0) return absl::InvalidArgumentError("unknown data type");
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat(ToString(shape), " has a negative size"));
    // A later size of 0 makes the tensor empty, but what comes before it must still be a shape.
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(shape), " has more than 2^63 bytes"));
    }
  }
  return empty ? 0 : bytes;
}

Tensor::Tensor(DataType dtype, Shape shape, int64_t bytes)
    // Not make_unique, which would write zeros over memory that is about to be written.
    : Tensor(dtype, std::move(shape), std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes)),
             bytes) {}

Tensor::Tensor(DataType dtype, Shape shape, std::unique_ptr<std::byte[]> owned, int64_t bytes)
    : dtype_(dtype),
      shape_(std::move(shape)),
      owned_(std::move(owned)),
      bytes_(owned_.get(), static_cast<size_t>(bytes)) {}

Tensor::Tensor(DataType dtype, Shape shape, absl::Span<std::byte> memory)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(memory) {}

ResponseShapes ExpectedShapes(const Request& request) {
  ResponseShapes shapes;
  const Shape& q = request.q.shape;
  const Shape& k = request.k.shape;
  const Shape& v = request.v.shape;
  const bool packed = request.layout == Layout::kPacked;
  const size_t rank = packed ? 3 : 4;
  if (q.size() != rank || k.size() != rank || v.size() != rank) return shapes;
  shapes.out = q;
  shapes.out->back() = v.back();
  if (packed) {
    if (request.return_lse) shapes.lse = Shape{q[1], q[0]};
    return shapes;
  }
  const bool bhld = request.layout == Layout::kBhld;
  const int64_t q_heads = bhld ? q[1] : q[2];
  const int64_t q_len = bhld ? q[2] : q[1];
  const int64_t kv_len = bhld ? k[2] : k[1];
  if (request.return_lse) shapes.lse = Shape{q[0], q_heads, q_len};
  if (request.return_weights) {
    shapes.weights = Shape{q[0], q_heads, q_len, kv_len};
  } else if (!request.weight_rows.empty()) {
    shapes.weights = Shape{q[0], q_heads, static_cast<int64_t>(request.weight_rows.size()), kv_len};
  }
  return shapes;
}

}  // namespace client
}  // namespace attend
