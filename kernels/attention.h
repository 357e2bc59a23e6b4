// Attention problems, as every kernel on every device takes them.
//
// A Problem is one sequence with all its heads; a Launch is a list of problems that share data type,
// head_dims and kernel. Nothing is padded or packed to share a launch: each problem keeps its own
// pointers, strides, lengths, masks and scale.
//
// What a kernel computes, for each query head h (its KV head is h / (q_heads / kv_heads)), query i and
// key j, with scores, softmax and accumulation in fp32 whatever the data type:
//
//   s[i][j] = softcap(scale * q[i]·k[j]) + bias[i][j] - slope * |i + kv_len - q_len - j|
//   out[i]  = sum_j exp(s[i][j] - lse[i]) * v[j]        over the keys j that i may see
//   lse[i]  = log(sum_j exp(s[i][j]) + exp(sink))       natural logarithm; exp(sink) = 0 without sinks
//
// where softcap(x) = c * tanh(x / c), or x when softcap is 0. A row that may see no key gives out = 0
// and lse = -inf (or its sink). What a row may not see has no influence on it, NaN and Inf included;
// what it may see follows IEEE 754, but that a device may take q and k of bf16, their products and sums of
// those for 0 where they are below 2^-126 in magnitude. The bits of an answer depend on its problem alone,
// never on the other problems of the launch.
//
// Flash attention: Dao et al. 2022 (arXiv:2205.14135); the online softmax: Milakov and Gimelshein 2018
// (arXiv:1805.02867), algorithm 3.
#ifndef ATTEND_KERNELS_ATTENTION_H_
#define ATTEND_KERNELS_ATTENTION_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attend {

enum class DataType : uint8_t { kFp32, kFp16, kBf16 };
enum class Kernel : uint8_t { kAuto, kNaive, kOnline, kFlash };
// Where the causal diagonal lies. Windows lie on it too; without causal masking they lie on the
// bottom-right one.
enum class Causal : uint8_t { kNone, kBottomRight, kTopLeft };

inline constexpr int64_t kUnbounded = -1;
inline constexpr int32_t kHeadDimMultiple = 8;
inline constexpr int32_t kHeadDimMax = 256;
// A finite bias beyond this magnitude counts as this: kernels that count scores in units of log2 keep it
// finite, so that the lowest float, with which many models mask, does not turn into the -inf that masks.
inline constexpr float kBiasMax = 0x1p127f;

// Bytes of one element.
constexpr int64_t SizeOf(DataType dtype) { return dtype == DataType::kFp32 ? 4 : 2; }
absl::string_view Name(DataType dtype);  // "fp32", "fp16", "bf16"
absl::string_view Name(Kernel kernel);   // "auto", "naive", "online", "flash"

// Element strides of a [tokens, heads, head_dim] tensor whose innermost dimension is contiguous. A
// dimension of size 1 may have any stride. 64-bit: a tensor may pass 2^31 elements.
struct Strides {
  int64_t token = 0;
  int64_t head = 0;
};

// Element strides of a tensor broadcast to [q_heads, q_len, kv_len]; 0 in a broadcast dimension.
struct ScoreStrides {
  int64_t head = 0;
  int64_t row = 0;
  int64_t key = 0;
};

// K and V in pages of `tokens` tokens (16 to 256, a power of two). Key j lies in page
// table[j / tokens] at token j % tokens; the page's first element is at page * page_stride from the
// tensor's base pointer, and Strides apply inside the page. Table entries behind kv_len are never read.
struct PageTable {
  const int32_t* table = nullptr;  // [ceil(kv_len / tokens)], in the device's memory; null: not paged
  int32_t tokens = 0;
  int64_t k_page_stride = 0;  // elements
  int64_t v_page_stride = 0;  // elements
};

// One sequence with all its heads. Pointers are in the memory of the device that runs it. Inputs are
// not written; outputs do not overlap inputs or each other.
struct Problem {
  int64_t q_len = 0;
  int64_t kv_len = 0;
  // Rows of out, lse (and weights) that exist: q_len or more. Rows q_len .. q_len_padded - 1 are written
  // as out = 0, lse = -inf (sinks or not), weights = 0.
  int64_t q_len_padded = 0;
  // Columns of weights that exist: kv_len or more. Columns from kv_len on are written as 0.
  int64_t kv_len_padded = 0;
  int32_t q_heads = 0;   // a multiple of kv_heads
  int32_t kv_heads = 0;  // 1 or more

  const void* q = nullptr;  // [q_len, q_heads, head_dim]
  const void* k = nullptr;  // [kv_len, kv_heads, head_dim]
  const void* v = nullptr;  // [kv_len, kv_heads, v_head_dim]
  void* out = nullptr;      // [q_len_padded, q_heads, v_head_dim]; fp32 in a partial launch
  Strides q_strides, k_strides, v_strides, out_strides;
  PageTable pages;

  float* lse = nullptr;         // [q_heads, q_len_padded], token stride 1; null: not wanted
  int64_t lse_head_stride = 0;  // elements

  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  Causal causal = Causal::kNone;
  int64_t window_left = kUnbounded;   // keys before the diagonal that a query sees, or kUnbounded
  int64_t window_right = kUnbounded;  // keys after it

  const void* bias = nullptr;  // fp32 or the launch's dtype; null: none. -inf masks; finite: see kBiasMax
  bool bias_is_fp32 = false;
  ScoreStrides bias_strides;
  const uint8_t* mask = nullptr;  // 1 may attend, 0 may not; null: none
  ScoreStrides mask_strides;
  const float* alibi_slopes = nullptr;  // [q_heads]; null: none
  const float* sinks = nullptr;         // [q_heads]; null: none. Ignored by a partial launch

  // Weights wanted: null for none. With weight_rows null, of all rows, [q_heads, q_len_padded,
  // kv_len_padded]; else of the weight_row_count rows listed, [q_heads, weight_row_count,
  // kv_len_padded]. Contiguous in keys. Listed rows at or behind q_len give zeros.
  float* weights = nullptr;
  int64_t weights_head_stride = 0;
  int64_t weights_row_stride = 0;
  const int64_t* weight_rows = nullptr;  // [weight_row_count], in the device's memory
  int64_t weight_row_count = 0;
};
static_assert(std::is_trivially_copyable_v<Problem>);

// Problems that run together. kernel is never kAuto.
struct Launch {
  Kernel kernel = Kernel::kFlash;
  DataType dtype = DataType::kFp32;
  int32_t head_dim = 0;    // of q and k: a multiple of 8, 8 to 256
  int32_t v_head_dim = 0;  // of v and out: a multiple of 8, 8 to 256
  // Writes a partial state: out normalised and in fp32, lse without sinks (required). Partial states of
  // disjoint key ranges merge (kernels/merge.h) to what one launch over all keys gives.
  bool partial = false;
  std::span<const Problem> problems;
};

// What a launch computes and carries, by the algorithm's own count; a function of the launch alone.
struct WorkCount {
  int64_t flops = 0;        // 2 * visible pairs * (head_dim + v_head_dim)
  int64_t read_bytes = 0;   // from device memory, each tensor once per pass of the algorithm
  int64_t write_bytes = 0;  // to device memory, likewise
  int64_t tile_bytes = 0;   // read by tiles in all, re-reads included
  int64_t corrections = 0;  // rescalings of a running state (ONLINE, FLASH)
  int64_t correction_flops = 0;
  int64_t scratch_bytes = 0;  // workspace that the algorithm needs at once

  WorkCount& operator+=(const WorkCount& other);
};

// The kernel that kAuto stands for; other kernels are returned unchanged.
Kernel ResolveKernel(Kernel asked, bool all_weights);

// Checks what every device requires of a launch: head_dims, heads, lengths, windows, pages, finite
// scale, weights only where the kernel forms them. Does not read device memory. InvalidArgument names
// the field and the limit. Thread-safe, as everything in this header is.
absl::Status CheckLaunch(const Launch& launch);

// The keys that some query row sees through causal mask and window: [begin, end), within [0, kv_len).
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};
// Of one row; empty (begin == end) where it sees none.
KeyRange VisibleKeys(const Problem& problem, int64_t row);
// Of rows [row_begin, row_end): the smallest range that holds each row's.
KeyRange VisibleKeys(const Problem& problem, int64_t row_begin, int64_t row_end);
// Pairs (query, key) that causal mask and window leave, for one head. O(1).
int64_t VisiblePairs(const Problem& problem);

}  // namespace attend

#endif  // ATTEND_KERNELS_ATTENTION_H_
