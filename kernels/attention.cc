#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace attend {
namespace {

absl::Status Invalid(size_t problem, absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("problems[", problem, "].", field, ": ", what));
}

absl::Status CheckHeadDim(absl::string_view field, int32_t head_dim) {
  if (head_dim < kHeadDimMultiple || head_dim > kHeadDimMax || head_dim % kHeadDimMultiple != 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", head_dim, "; supported: multiples of ",
                                                   kHeadDimMultiple, " from ", kHeadDimMultiple, " to ",
                                                   kHeadDimMax));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(size_t i, const Problem& p) {
  if (p.q_len < 0 || p.kv_len < 0) return Invalid(i, "q_len", "lengths are 0 or more");
  if (p.q_len_padded < p.q_len) return Invalid(i, "q_len_padded", "must be at least q_len");
  if (p.kv_heads < 1) return Invalid(i, "kv_heads", "must be at least 1");
  if (p.q_heads < 1 || p.q_heads % p.kv_heads != 0) {
    return Invalid(i, "q_heads", absl::StrCat(p.q_heads, " is not a multiple of kv_heads ", p.kv_heads));
  }
  if (p.window_left < kUnbounded) return Invalid(i, "window_left", "must be 0 or more, or unbounded");
  if (p.window_right < kUnbounded) return Invalid(i, "window_right", "must be 0 or more, or unbounded");
  return absl::OkStatus();
}

absl::Status CheckPointers(size_t i, const Problem& p, const Launch& launch) {
  const bool rows = p.q_len_padded > 0;
  if (rows && p.out == nullptr) return Invalid(i, "out", "is null");
  if (p.q_len > 0 && p.q == nullptr) return Invalid(i, "q", "is null");
  if (p.q_len > 0 && p.kv_len > 0 && (p.k == nullptr || p.v == nullptr))
    return Invalid(i, "k", "k or v is null");
  if (launch.partial && rows && p.lse == nullptr) return Invalid(i, "lse", "is required by a partial launch");
  if (p.pages.table != nullptr) {
    const int32_t tokens = p.pages.tokens;
    if (tokens < 16 || tokens > 256 || (tokens & (tokens - 1)) != 0) {
      return Invalid(i, "pages.tokens", absl::StrCat(tokens, " is not a power of two from 16 to 256"));
    }
  }
  if (p.weights != nullptr) {
    if (p.weight_rows == nullptr && launch.kernel == Kernel::kFlash) {
      return Invalid(i, "weights",
                     "FLASH never forms all weights; ask for chosen rows, or use NAIVE or ONLINE");
    }
    if (p.kv_len_padded < p.kv_len) return Invalid(i, "kv_len_padded", "must be at least kv_len");
  }
  return absl::OkStatus();
}

// Where row's diagonal lies: the key that stands beside it.
int64_t Diagonal(const Problem& p, int64_t row) {
  return p.causal == Causal::kTopLeft ? row : row + p.kv_len - p.q_len;
}

// Lengths and windows may be near 2^63.
using Wide = __int128;

// The sum of min(max(i + offset, 0), limit) over i of [0, count).
Wide SumClamped(Wide offset, int64_t count, int64_t limit) {
  // Rows [begin, end) lie strictly between the clamps; those behind give the limit.
  const Wide begin = std::clamp<Wide>(-offset, 0, count);
  const Wide end = std::clamp<Wide>(limit - offset, begin, count);
  const Wide between = (end - begin) * offset + (begin + end - 1) * (end - begin) / 2;
  return between + (count - end) * limit;
}

}  // namespace

absl::string_view Name(DataType dtype) {
  switch (dtype) {
    case DataType::kFp32:
      return "fp32";
    case DataType::kFp16:
      return "fp16";
    case DataType::kBf16:
      return "bf16";
  }
  return "?";
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
  return "?";
}

WorkCount& WorkCount::operator+=(const WorkCount& other) {
  flops += other.flops;
  read_bytes += other.read_bytes;
  write_bytes += other.write_bytes;
  tile_bytes += other.tile_bytes;
  corrections += other.corrections;
  correction_flops += other.correction_flops;
  scratch_bytes += other.scratch_bytes;
  return *this;
}

Kernel ResolveKernel(Kernel asked, bool all_weights) {
  if (asked != Kernel::kAuto) return asked;
  return all_weights ? Kernel::kNaive : Kernel::kFlash;
}

absl::Status CheckLaunch(const Launch& launch) {
  if (launch.kernel == Kernel::kAuto) return absl::InvalidArgumentError("kernel is auto; resolve it first");
  if (auto s = CheckHeadDim("head_dim", launch.head_dim); !s.ok()) return s;
  if (auto s = CheckHeadDim("v_head_dim", launch.v_head_dim); !s.ok()) return s;
  for (size_t i = 0; i < launch.problems.size(); ++i) {
    const Problem& p = launch.problems[i];
    if (auto s = CheckShape(i, p); !s.ok()) return s;
    if (!std::isfinite(p.scale)) return Invalid(i, "scale", "must be finite");
    if (!std::isfinite(p.softcap) || p.softcap < 0)
      return Invalid(i, "softcap", "must be finite and 0 or more");
    if (auto s = CheckPointers(i, p, launch); !s.ok()) return s;
  }
  return absl::OkStatus();
}

KeyRange VisibleKeys(const Problem& p, int64_t row) { return VisibleKeys(p, row, row + 1); }

KeyRange VisibleKeys(const Problem& p, int64_t row_begin, int64_t row_end) {
  if (row_begin >= row_end || p.kv_len == 0) return {0, 0};
  int64_t begin = 0;
  int64_t end = p.kv_len;
  // Lengths and windows may be near 2^63: compare before adding.
  if (p.window_left != kUnbounded) {
    const int64_t d = Diagonal(p, row_begin);
    if (d > p.window_left) begin = d - p.window_left;
  }
  int64_t right = p.window_right;
  if (p.causal != Causal::kNone) right = 0;
  if (right != kUnbounded) {
    const int64_t d = Diagonal(p, row_end - 1);
    if (right < p.kv_len - 1 - std::min(d, p.kv_len - 1)) end = std::max<int64_t>(0, d + right + 1);
  }
  begin = std::min(begin, p.kv_len);
  if (begin >= end) return {begin, begin};
  return {begin, end};
}

int64_t VisiblePairs(const Problem& p) {
  // Row i sees [clamp(i + first), clamp(i + last)), clamped to the keys there are.
  const Wide diagonal = p.causal == Causal::kTopLeft ? 0 : Wide{p.kv_len} - p.q_len;
  int64_t right = p.window_right;
  if (p.causal != Causal::kNone) right = 0;
  const Wide ends =
      right == kUnbounded ? Wide{p.q_len} * p.kv_len : SumClamped(diagonal + right + 1, p.q_len, p.kv_len);
  const Wide begins =
      p.window_left == kUnbounded ? 0 : SumClamped(diagonal - p.window_left, p.q_len, p.kv_len);
  return static_cast<int64_t>(ends - begins);
}

}  // namespace attend
