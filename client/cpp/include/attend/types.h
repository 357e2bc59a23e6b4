// What a call of Attend takes and gives: views over the caller's tensors, options, results.
//
// Tensors are little-endian, contiguous, row-major, without padding: what a C array, a torch tensor after
// .contiguous() or a safetensors file holds on every machine that this library compiles for.
//
// B is the batch, Hq and Hkv the query and key/value heads (Hq a multiple of Hkv), Lq and Lk the query and
// key lengths, D the head_dim of q and k, Dv that of v (multiples of 8, at most 256).
#ifndef ATTEND_TYPES_H_
#define ATTEND_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace attend {
// Everything public is attend::Name. The inline namespace keeps these names apart from the server's own
// (attend::DataType, ...) where one process links both.
inline namespace client {

// Element types; the values are those of attend.v1.DataType.
enum class DataType : uint8_t { kFp32 = 1, kFp16 = 2, kBf16 = 3, kBool = 4 };
// The ladder of kernels; the values are those of attend.v1.Kernel. Reports never carry kAuto.
enum class Kernel : uint8_t { kAuto = 1, kNaive = 2, kOnline = 3, kFlash = 4 };
// How q, k, v and out are laid out: [B,H,L,D], [B,L,H,D] or [total,H,D]; the values of attend.v1.Layout.
enum class Layout : uint8_t { kBhld = 1, kBlhd = 2, kPacked = 3 };
// Causal masking; the values of attend.v1.CausalMode. With kBottomRight query i sees keys up to
// i + kv_len - q_len, with kTopLeft up to i.
enum class Causal : uint8_t { kNone = 1, kBottomRight = 2, kTopLeft = 3 };

// Bytes of one element: 4, 2, 2, 1.
int64_t SizeOf(DataType dtype);
absl::string_view Name(DataType dtype);  // "fp32", "fp16", "bf16", "bool"
absl::string_view Name(Kernel kernel);   // "auto", "naive", "online", "flash"
absl::string_view Name(Layout layout);   // "bhld", "blhd", "packed"
absl::string_view Name(Causal causal);   // "none", "bottom-right", "top-left"

using Shape = std::vector<int64_t>;
// "[4,8,256,64]"
std::string ToString(const Shape& shape);
// Bytes of a tensor. InvalidArgument where a size is negative or the product overflows int64.
absl::StatusOr<int64_t> ByteSize(DataType dtype, const Shape& shape);

// A tensor in the caller's memory, which must stay as it is until the call that reads it is done.
struct TensorView {
  DataType dtype = DataType::kFp32;
  Shape shape;
  const void* data = nullptr;  // ByteSize(dtype, shape) bytes; may be null where that is 0
};

// A tensor in a buffer of its own, or in memory that the caller gave for it. Movable.
class Tensor {
 public:
  Tensor() = default;
  // An owned tensor of `bytes` uninitialised bytes.
  Tensor(DataType dtype, Shape shape, int64_t bytes);
  // A tensor that takes over `owned`, of `bytes` bytes.
  Tensor(DataType dtype, Shape shape, std::unique_ptr<std::byte[]> owned, int64_t bytes);
  // A tensor in memory of the caller's, which outlives it.
  Tensor(DataType dtype, Shape shape, absl::Span<std::byte> memory);

  DataType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  absl::Span<const std::byte> bytes() const { return bytes_; }
  absl::Span<std::byte> mutable_bytes() { return bytes_; }
  // The elements as T, for example float for kFp32. sizeof(T) must be SizeOf(dtype()).
  template <typename T>
  absl::Span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  TensorView view() const { return {dtype_, shape_, bytes_.data()}; }

 private:
  DataType dtype_ = DataType::kFp32;
  Shape shape_;
  std::unique_ptr<std::byte[]> owned_;
  absl::Span<std::byte> bytes_;
};

// One attention problem: softmax(q * k^T * scale [softcap] [+ bias] [masked]) * v. The options mean what
// proto/attend/v1/attention.proto says; the server checks them and names every one that is wrong.
struct Request {
  TensorView q;  // kBhld [B,Hq,Lq,D]; kBlhd [B,Lq,Hq,D]; kPacked [total_q,Hq,D]
  TensorView k;  // of q's dtype; as q with Hkv and Lk
  TensorView v;  // of q's dtype; as k with Dv
  Layout layout = Layout::kBhld;
  Kernel kernel = Kernel::kAuto;
  Causal causal = Causal::kNone;
  std::optional<float> scale;              // unset: 1/sqrt(D)
  std::optional<float> softcap;            // > 0; unset: none
  std::optional<int64_t> window_left;      // keys before the diagonal, inclusive; unset: unbounded
  std::optional<int64_t> window_right;     // keys after it
  std::vector<int64_t> q_lengths;          // [B]; empty (dense only): all Lq
  std::vector<int64_t> kv_lengths;         // [B]; empty (dense only): all Lk
  std::optional<TensorView> bias;          // fp32 or q's dtype, [B|1,Hq|1,Lq|1,Lk|1]
  std::optional<TensorView> mask;          // bool, the same shapes; 1 may attend
  std::optional<TensorView> alibi_slopes;  // fp32, [Hq] or [B,Hq]
  std::optional<TensorView> sinks;         // fp32, [Hq]
  bool return_lse = false;
  bool return_weights = false;       // all rows; not with kFlash
  std::vector<int64_t> weight_rows;  // or only these, with any kernel
};

// What ran and what it carried; byte and FLOP counts are the algorithm's own, times are nanoseconds.
struct Report {
  Kernel kernel = Kernel::kAuto;
  std::string device;           // "cpu", "cuda:0"
  int64_t flops = 0;            // 2 * visible pairs * (D + Dv)
  int64_t hbm_read_bytes = 0;   // each tensor once per pass of the algorithm
  int64_t hbm_write_bytes = 0;  // likewise
  int64_t tile_bytes = 0;       // read by the tiles in all, re-reads included
  int64_t corrections = 0;      // rescalings of a running state
  int64_t correction_flops = 0;
  int64_t queue_ns = 0;
  int64_t copy_in_ns = 0;
  int64_t kernel_ns = 0;  // of the launch, shared by all requests in it
  int64_t copy_out_ns = 0;
  int64_t batch_requests = 0;  // requests that shared the launch
};

struct Response {
  Tensor out;                     // q's dtype and layout, with Dv in place of D
  std::optional<Tensor> lse;      // fp32, [B,Hq,Lq] (packed: [Hq,total_q]); natural logarithm
  std::optional<Tensor> weights;  // fp32, [B,Hq,Lq,Lk], or [B,Hq,n,Lk] for n weight_rows
  Report report;
  std::string request_id;  // under which the server logged the call
  int attempts = 0;        // 1 where no retry was needed
};

// Shapes that the response to a request will have. Empty where the request has no such result, or its
// shapes are too wrong to tell.
struct ResponseShapes {
  std::optional<Shape> out, lse, weights;
};
ResponseShapes ExpectedShapes(const Request& request);

// What the server is and can do, as attend.v1.InfoService describes it.
struct ServerInfo {
  struct Device {
    std::string name, kind, model, uuid;
    int64_t memory_bytes = 0;
    int slots = 0;
  };
  struct KernelSupport {
    Kernel kernel = Kernel::kAuto;
    std::vector<DataType> dtypes;
    int head_dim_multiple = 0;
    int head_dim_max = 0;
    bool all_weights = false;
  };
  struct Limits {
    int64_t request_bytes_max = 0;
    int64_t response_bytes_max = 0;
    int64_t queue_requests_max = 0;
    int64_t host_bytes_max = 0;
    int64_t device_bytes_max = 0;
    int64_t batch_requests_max = 0;
  };
  std::string version;
  std::vector<Device> devices;
  std::vector<KernelSupport> kernels;
  Limits limits;
};

}  // namespace client
}  // namespace attend

#endif  // ATTEND_TYPES_H_
