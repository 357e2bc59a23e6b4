#include "server/wire/validate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "attend/v1/types.pb.h"
#include "server/wire/tensor_checks.h"

namespace attend::server {
namespace {

// Bytes of a reply besides its tensors: specs and report.
constexpr int64_t kResponseHeaderBytesMax = 4096;

// Where the meanings of a shape lie in it; -1: nowhere.
struct Axes {
  int batch, heads, length, dim;
};
constexpr Axes kBhldAxes = {0, 1, 2, 3};
constexpr Axes kBlhdAxes = {0, 2, 1, 3};
constexpr Axes kPackedAxes = {-1, 1, 0, 2};

class Validator {
 public:
  Validator(const RequestFields& fields, const DecodeLimits& limits, Call* call, ViolationList* violations)
      : f_(fields), limits_(limits), call_(*call), violations_(*violations), tensors_(fields, violations) {}

  void Run() {
    ReadEnums();
    ReadOptions();
    CheckInputs();
    if (sizes_known_) CheckLengths();
    CheckScoreTensors();
    CheckHeadTensors();
    CheckWeights();
    tensors_.CheckStrayData();
    if (sizes_known_) CheckResponse();
  }

 private:
  void ReadEnums() {
    switch (f_.layout) {
      case v1::LAYOUT_UNSPECIFIED:
      case v1::LAYOUT_BHLD:
        call_.layout = Layout::kBhld;
        break;
      case v1::LAYOUT_BLHD:
        call_.layout = Layout::kBlhd;
        axes_ = kBlhdAxes;
        break;
      case v1::LAYOUT_PACKED:
        call_.layout = Layout::kPacked;
        axes_ = kPackedAxes;
        break;
      default:
        layout_known_ = false;
        violations_.Add("layout", f_.layout, " is not a Layout that this server knows");
    }
    switch (f_.kernel) {
      case v1::KERNEL_UNSPECIFIED:
      case v1::KERNEL_AUTO:
        call_.kernel = Kernel::kAuto;
        break;
      case v1::KERNEL_NAIVE:
        call_.kernel = Kernel::kNaive;
        break;
      case v1::KERNEL_ONLINE:
        call_.kernel = Kernel::kOnline;
        break;
      case v1::KERNEL_FLASH:
        call_.kernel = Kernel::kFlash;
        break;
      default:
        violations_.Add("kernel", f_.kernel, " is not a Kernel that this server knows");
    }
    switch (f_.causal) {
      case v1::CAUSAL_MODE_UNSPECIFIED:
      case v1::CAUSAL_MODE_NONE:
        call_.causal = Causal::kNone;
        break;
      case v1::CAUSAL_MODE_BOTTOM_RIGHT:
        call_.causal = Causal::kBottomRight;
        break;
      case v1::CAUSAL_MODE_TOP_LEFT:
        call_.causal = Causal::kTopLeft;
        break;
      default:
        violations_.Add("causal", f_.causal, " is not a CausalMode that this server knows");
    }
  }

  void ReadOptions() {
    // Devices compute with exponents of 2: more would not stay finite there.
    constexpr float kMax = 0x1p127f;
    if (f_.scale && !(std::abs(*f_.scale) <= kMax)) {
      violations_.Add("scale", "is ", *f_.scale, "; must be finite and at most ", kMax, " in magnitude");
    }
    call_.scale = f_.scale;
    if (f_.softcap && !(*f_.softcap > 0 && *f_.softcap <= kMax)) {
      violations_.Add("softcap", "is ", *f_.softcap, "; must be above 0 (unset: no cap) and at most ", kMax);
    }
    call_.softcap = f_.softcap.value_or(0.0f);
    call_.window_left = ReadWindow("window_left", f_.window_left);
    call_.window_right = ReadWindow("window_right", f_.window_right);
    call_.return_lse = f_.return_lse;
    call_.return_weights = f_.return_weights;
    if (f_.return_weights && f_.kernel == v1::KERNEL_FLASH) {
      violations_.Add("return_weights",
                      "KERNEL_FLASH never forms all weights: ask for chosen weight_rows, or use KERNEL_AUTO, "
                      "KERNEL_NAIVE or KERNEL_ONLINE");
    }
    if (f_.return_weights && f_.weight_rows.count > 0) {
      violations_.Add("weight_rows", "excludes return_weights: ask for all rows or for these");
    }
  }

  int64_t ReadWindow(absl::string_view field, const std::optional<int64_t>& window) {
    if (!window) return kUnbounded;
    if (*window < 0) violations_.Add(field, "is ", *window, "; must be 0 or more (unset: unbounded)");
    return *window;
  }

  // --- q, k, v ---

  void CheckInputs() {
    const bool q = CheckInput(TensorId::kQ, "query heads");
    const bool k = CheckInput(TensorId::kK, "key heads");
    const bool v = CheckInput(TensorId::kV, "value heads");
    const bool q_dtype =
        tensors_.CheckDtype(TensorId::kQ, {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16});
    if (q_dtype) {
      const auto dtype = static_cast<v1::DataType>(f_.tensor(TensorId::kQ).dtype);
      call_.dtype = dtype == v1::DATA_TYPE_FP32   ? DataType::kFp32
                    : dtype == v1::DATA_TYPE_FP16 ? DataType::kFp16
                                                  : DataType::kBf16;
    }
    const bool k_dtype = q_dtype && tensors_.CheckSameDtype(TensorId::kK);
    const bool v_dtype = q_dtype && tensors_.CheckSameDtype(TensorId::kV);
    const int64_t element_bytes = SizeOf(call_.dtype);
    if (q && q_dtype) tensors_.CheckData(TensorId::kQ, element_bytes);
    if (k && k_dtype) tensors_.CheckData(TensorId::kK, element_bytes);
    if (v && v_dtype) tensors_.CheckData(TensorId::kV, element_bytes);
    sizes_known_ = q && k && v && TakeSizes();
  }

  bool CheckInput(TensorId id, absl::string_view heads) {
    if (!tensors_.RequireSpec(id) || !layout_known_) return false;
    const int rank = call_.layout == Layout::kPacked ? 3 : 4;
    if (!tensors_.CheckRank(id, rank, rank)) return false;
    const TensorField& t = f_.tensor(id);
    bool ok = tensors_.CheckSizes(id);
    const int64_t head_count = t.shape[static_cast<size_t>(axes_.heads)];
    const int64_t heads_max = std::min<int64_t>(limits_.heads_max, std::numeric_limits<int32_t>::max());
    if (head_count == 0 || head_count > heads_max) {
      violations_.AddAt(ShapePath(id), axes_.heads, "is ", head_count, " ", heads, "; from 1 to ", heads_max);
      ok = false;
    }
    const int64_t dim = t.shape[static_cast<size_t>(axes_.dim)];
    if (dim >= 0 && (dim < kHeadDimMultiple || dim > kHeadDimMax || dim % kHeadDimMultiple != 0)) {
      violations_.AddAt(ShapePath(id), axes_.dim, "is head_dim ", dim, "; a multiple of ", kHeadDimMultiple,
                        " from ", kHeadDimMultiple, " to ", kHeadDimMax);
      ok = false;
    }
    return ok;
  }

  // Takes the call's sizes from q, k and v, which are well formed each by itself.
  bool TakeSizes() {
    const size_t faults = violations_.size();
    const auto size = [&](TensorId id, int axis) { return f_.tensor(id).shape[static_cast<size_t>(axis)]; };
    const auto same = [&](TensorId id, TensorId as, int axis) {
      if (axis < 0 || size(id, axis) == size(as, axis)) return;
      violations_.AddAt(ShapePath(id), axis, "is ", size(id, axis), ", but ", SpecName(as), ".shape[", axis,
                        "] is ", size(as, axis));
    };
    same(TensorId::kK, TensorId::kQ, axes_.batch);
    same(TensorId::kV, TensorId::kQ, axes_.batch);
    same(TensorId::kV, TensorId::kK, axes_.heads);
    same(TensorId::kV, TensorId::kK, axes_.length);
    same(TensorId::kK, TensorId::kQ, axes_.dim);
    const int64_t q_heads = size(TensorId::kQ, axes_.heads);
    const int64_t kv_heads = size(TensorId::kK, axes_.heads);
    if (q_heads % kv_heads != 0) {
      violations_.AddAt("q.shape", axes_.heads, "is ", q_heads, " query heads; must be a multiple of the ",
                        kv_heads, " heads of k and v");
    }
    if (axes_.batch >= 0) {
      call_.batch = size(TensorId::kQ, axes_.batch);
      if (call_.batch > limits_.batch_max) {
        violations_.AddAt("q.shape", axes_.batch, "is a batch of ", call_.batch, "; at most ",
                          limits_.batch_max);
      }
    }
    call_.q_heads = static_cast<int32_t>(q_heads);
    call_.kv_heads = static_cast<int32_t>(kv_heads);
    call_.head_dim = static_cast<int32_t>(size(TensorId::kQ, axes_.dim));
    call_.v_head_dim = static_cast<int32_t>(size(TensorId::kV, axes_.dim));
    call_.q_len = size(TensorId::kQ, axes_.length);
    call_.kv_len = size(TensorId::kK, axes_.length);
    return violations_.size() == faults;
  }

  // --- lengths ---

  void CheckLengths() {
    CheckLengthCount("q_lengths", f_.q_lengths);
    CheckLengthCount("kv_lengths", f_.kv_lengths);
    if (call_.layout == Layout::kPacked) {
      if (f_.q_lengths.count != f_.kv_lengths.count) {
        violations_.Add("kv_lengths", "has ", f_.kv_lengths.count, " entries, but q_lengths has ",
                        f_.q_lengths.count);
      }
      call_.batch = std::min<int64_t>(f_.q_lengths.count, limits_.batch_max);
      CheckPackedLengths("q_lengths", f_.q_lengths, call_.q_len);
      CheckPackedLengths("kv_lengths", f_.kv_lengths, call_.kv_len);
    } else {
      CheckDenseLengths("q_lengths", f_.q_lengths, call_.q_len);
      CheckDenseLengths("kv_lengths", f_.kv_lengths, call_.kv_len);
    }
    call_.q_lengths = f_.q_lengths.values;
    call_.kv_lengths = f_.kv_lengths.values;
  }

  void CheckLengthCount(absl::string_view field, const BoundedList& lengths) {
    if (lengths.count > limits_.batch_max) {
      violations_.Add(field, "has ", lengths.count, " entries; at most ", limits_.batch_max);
    }
    if (call_.layout != Layout::kPacked && lengths.count != 0 && lengths.count != call_.batch) {
      violations_.Add(field, "has ", lengths.count, " entries; the batch is ", call_.batch);
    }
  }

  void CheckDenseLengths(absl::string_view field, const BoundedList& lengths, int64_t max) {
    for (size_t i = 0; i < lengths.values.size(); ++i) {
      if (lengths.values[i] < 0 || lengths.values[i] > max) {
        violations_.AddAt(field, static_cast<int64_t>(i), "is ", lengths.values[i], "; from 0 to ", max);
      }
    }
  }

  void CheckPackedLengths(absl::string_view field, const BoundedList& lengths, int64_t total) {
    int64_t end = 0;  // of the sequences so far; at most total
    for (size_t i = 0; i < lengths.values.size(); ++i) {
      const int64_t length = lengths.values[i];
      if (length < 0) {
        violations_.AddAt(field, static_cast<int64_t>(i), "is ", length, "; must be 0 or more");
        return;
      }
      if (length > total - end) {
        violations_.AddAt(field, static_cast<int64_t>(i), "is ", length, ": its sequence starts at ", end,
                          " and passes the total of ", total);
        return;
      }
      end += length;
    }
    if (end != total && lengths.count <= limits_.batch_max) {
      violations_.Add(field, "add up to ", end, "; the packed tensors hold ", total);
    }
  }

  // --- bias and mask, alibi_slopes and sinks ---

  void CheckScoreTensors() {
    if (const TensorField& bias = f_.tensor(TensorId::kBias); bias.has_spec) {
      call_.bias = CheckScoreTensor(TensorId::kBias);
      call_.bias_is_fp32 = bias.dtype == v1::DATA_TYPE_FP32;
      const int32_t q_dtype = f_.tensor(TensorId::kQ).dtype;
      const bool dtype = q_dtype == v1::DATA_TYPE_FP16 || q_dtype == v1::DATA_TYPE_BF16
                             ? tensors_.CheckDtype(TensorId::kBias, {v1::DATA_TYPE_FP32, q_dtype})
                             : tensors_.CheckDtype(TensorId::kBias, {v1::DATA_TYPE_FP32});
      if (dtype && call_.bias) tensors_.CheckData(TensorId::kBias, call_.bias_is_fp32 ? 4 : 2);
    }
    if (f_.tensor(TensorId::kMask).has_spec) {
      call_.mask = CheckScoreTensor(TensorId::kMask);
      if (tensors_.CheckDtype(TensorId::kMask, {v1::DATA_TYPE_BOOL}) && call_.mask)
        tensors_.CheckData(TensorId::kMask, 1);
    }
  }

  std::optional<BroadcastShape> CheckScoreTensor(TensorId id) {
    if (call_.layout == Layout::kPacked) {
      violations_.Add(SpecName(id), "is for dense layouts; LAYOUT_PACKED takes lengths, causal and windows");
      return std::nullopt;
    }
    if (!tensors_.CheckRank(id, 4, 4) || !tensors_.CheckSizes(id)) return std::nullopt;
    const auto& shape = f_.tensor(id).shape;
    const std::array<int64_t, 4> full = {call_.batch, call_.q_heads, call_.q_len, call_.kv_len};
    constexpr std::array<absl::string_view, 4> kMeanings = {"batch", "query heads", "query length",
                                                            "key length"};
    const size_t faults = violations_.size();
    for (size_t i = 0; sizes_known_ && i < full.size(); ++i) {
      if (shape[i] == 1 || shape[i] == full[i]) continue;
      violations_.AddAt(ShapePath(id), static_cast<int64_t>(i), "is ", shape[i], "; must be 1 or the ",
                        kMeanings[i], ", ", full[i]);
    }
    if (violations_.size() != faults) return std::nullopt;
    return BroadcastShape{shape[0], shape[1], shape[2], shape[3]};
  }

  void CheckHeadTensors() {
    if (CheckHeadTensor(TensorId::kAlibiSlopes, 2)) {
      call_.alibi_slopes = true;
      call_.alibi_per_batch = f_.tensor(TensorId::kAlibiSlopes).rank == 2;
    }
    call_.sinks = CheckHeadTensor(TensorId::kSinks, 1);
  }

  // [Hq], or [B, Hq] where rank_max is 2; fp32.
  bool CheckHeadTensor(TensorId id, int rank_max) {
    const TensorField& t = f_.tensor(id);
    if (!t.has_spec) return false;
    const size_t faults = violations_.size();
    const bool dtype = tensors_.CheckDtype(id, {v1::DATA_TYPE_FP32});
    if (!tensors_.CheckRank(id, 1, rank_max) || !tensors_.CheckSizes(id)) return false;
    const auto expect = [&](int64_t axis, int64_t size, absl::string_view meaning) {
      const int64_t is = t.shape[static_cast<size_t>(axis)];
      if (is != size)
        violations_.AddAt(ShapePath(id), axis, "is ", is, "; must be the ", meaning, ", ", size);
    };
    if (sizes_known_) {
      if (t.rank == 2) expect(0, call_.batch, "batch");
      expect(t.rank - 1, call_.q_heads, "query heads");
    }
    if (dtype) tensors_.CheckData(id, 4);
    return violations_.size() == faults;
  }

  // --- weights and the reply ---

  void CheckWeights() {
    if (call_.layout == Layout::kPacked) {
      constexpr absl::string_view kDense = "is for dense layouts, not LAYOUT_PACKED";
      if (f_.return_weights) violations_.Add("return_weights", kDense);
      if (f_.weight_rows.count > 0) violations_.Add("weight_rows", kDense);
    }
    if (f_.weight_rows.count > limits_.weight_rows_max) {
      violations_.Add("weight_rows", "has ", f_.weight_rows.count, " entries; at most ",
                      limits_.weight_rows_max);
    }
    call_.weight_rows = f_.weight_rows.values;
    if (!sizes_known_) return;
    for (size_t i = 0; i < f_.weight_rows.values.size(); ++i) {
      const int64_t row = f_.weight_rows.values[i];
      if (row >= 0 && row < call_.q_len) continue;
      violations_.AddAt("weight_rows", static_cast<int64_t>(i), "is ", row,
                        "; from 0 to below the query length, ", call_.q_len);
    }
  }

  void CheckResponse() {
    const bool packed = call_.layout == Layout::kPacked;
    const int64_t rows = call_.return_weights ? call_.q_len : static_cast<int64_t>(call_.weight_rows.size());
    const bool weights = !packed && (call_.return_weights || rows > 0);
    const absl::string_view field = !weights               ? "q.shape"
                                    : call_.return_weights ? "return_weights"
                                                           : "weight_rows";
    const int64_t batch = packed ? 1 : call_.batch;
    const int64_t limit = std::min<int64_t>(limits_.response_bytes_max, std::numeric_limits<int32_t>::max());
    int64_t bytes = 0;
    bool fits = Product({batch, call_.q_heads, call_.q_len, call_.v_head_dim, 4}).has_value() &&
                (!weights || Product({batch, call_.q_heads, rows, call_.kv_len, 4}).has_value());
    fits = fits && !__builtin_add_overflow(call_.out_bytes(), call_.lse_bytes(), &bytes) &&
           !__builtin_add_overflow(bytes, weights ? call_.weights_bytes() : 0, &bytes);
    if (!fits) {
      violations_.Add(field, "makes a reply of more than 2^63 bytes; the limit is ", limit);
    } else if (bytes > limit - kResponseHeaderBytesMax) {
      violations_.Add(field, "makes a reply of ", bytes, " bytes of tensors; the limit is ",
                      limit - kResponseHeaderBytesMax);
    }
  }

  const RequestFields& f_;
  const DecodeLimits& limits_;
  Call& call_;
  ViolationList& violations_;
  TensorChecks tensors_;
  Axes axes_ = kBhldAxes;
  bool layout_known_ = true;
  bool sizes_known_ = false;  // q, k and v agree: call_ has their sizes
};

}  // namespace

void ValidateRequest(const RequestFields& fields, const DecodeLimits& limits, Call* call,
                     ViolationList* violations) {
  Validator(fields, limits, call, violations).Run();
}

}  // namespace attend::server
