#include "server/device/cuda/launch_split.h"

#include <algorithm>
#include <type_traits>

namespace attend::server {
namespace {

// What one multiprocessor of a recent data-centre GPU does in a nanosecond, at about half of what it
// reaches: predictions err on the long side.
constexpr double kTensorFlopsPerNs = 1500;  // 16-bit
constexpr double kFp32FlopsPerNs = 200;
constexpr double kBytesPerNs = 12;  // its share of the memory's bandwidth
constexpr double kLaunchNs = 5000;

const void* Advance(const void* base, int64_t bytes) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + bytes;
}

template <typename T>
T* Advance(T* base, int64_t elements) {
  return base == nullptr ? nullptr : base + elements;
}

}  // namespace

Problem HeadSlice(const Problem& problem, const Launch& launch, int32_t kv_begin, int32_t kv_count) {
  const int64_t size = SizeOf(launch.dtype);
  const int64_t out_size = launch.partial ? 4 : size;
  const int32_t group = problem.q_heads / problem.kv_heads;
  const int64_t q_begin = static_cast<int64_t>(kv_begin) * group;
  Problem p = problem;
  p.kv_heads = kv_count;
  p.q_heads = kv_count * group;
  p.q = Advance(p.q, q_begin * p.q_strides.head * size);
  p.k = Advance(p.k, kv_begin * p.k_strides.head * size);
  p.v = Advance(p.v, kv_begin * p.v_strides.head * size);
  p.out =
      const_cast<void*>(Advance(static_cast<const void*>(p.out), q_begin * p.out_strides.head * out_size));
  p.lse = Advance(p.lse, q_begin * p.lse_head_stride);
  p.bias = Advance(p.bias, q_begin * p.bias_strides.head * (p.bias_is_fp32 ? 4 : size));
  p.mask = Advance(p.mask, q_begin * p.mask_strides.head);
  p.alibi_slopes = Advance(p.alibi_slopes, q_begin);
  p.sinks = Advance(p.sinks, q_begin);
  p.weights = Advance(p.weights, q_begin * p.weights_head_stride);
  return p;
}

void MoveTensors(absl::FunctionRef<std::byte*(std::byte*)> move_to, Problem* problem) {
  const auto move = [move_to](auto*& tensor) {
    using Tensor = std::remove_reference_t<decltype(tensor)>;
    const auto from = reinterpret_cast<uintptr_t>(tensor);
    if (from != 0) tensor = reinterpret_cast<Tensor>(move_to(reinterpret_cast<std::byte*>(from)));
  };
  move(problem->q);
  move(problem->k);
  move(problem->v);
  move(problem->out);
  move(problem->lse);
  move(problem->bias);
  move(problem->mask);
  move(problem->alibi_slopes);
  move(problem->sinks);
  move(problem->weights);
  move(problem->weight_rows);
}

int64_t PredictNs(const Launch& launch, const Problem& p, int multiprocessors) {
  const double pairs = static_cast<double>(VisiblePairs(p)) * p.q_heads;
  const double dims = launch.head_dim + launch.v_head_dim;
  const double rate = launch.dtype == DataType::kFp32 ? kFp32FlopsPerNs : kTensorFlopsPerNs;
  double bytes =
      static_cast<double>(SizeOf(launch.dtype)) * dims *
      (static_cast<double>(p.q_len_padded) * p.q_heads + static_cast<double>(p.kv_len) * p.kv_heads);
  // NAIVE carries the scores seven times, ONLINE three times (kernels/work.h).
  const double scores = 4.0 * static_cast<double>(p.q_len) * static_cast<double>(p.kv_len) * p.q_heads;
  if (launch.kernel == Kernel::kNaive) bytes += 8 * scores;
  if (launch.kernel == Kernel::kOnline) bytes += 3 * scores;
  const double ns = kLaunchNs + (2 * pairs * dims / rate + bytes / kBytesPerNs) / multiprocessors;
  return static_cast<int64_t>(std::min(ns, 1e17));
}

std::vector<std::vector<Problem>> SplitLaunch(const Launch& launch, int multiprocessors,
                                              int64_t part_ns_max) {
  std::vector<std::vector<Problem>> parts(1);
  int64_t part_ns = 0;
  const auto append = [&](const Problem& problem, int64_t ns) {
    if (!parts.back().empty() && part_ns + ns > part_ns_max) {
      parts.emplace_back();
      part_ns = 0;
    }
    parts.back().push_back(problem);
    part_ns += ns;
  };
  for (const Problem& problem : launch.problems) {
    const int64_t ns = PredictNs(launch, problem, multiprocessors);
    if (ns <= part_ns_max || problem.kv_heads == 1) {
      append(problem, ns);
      continue;
    }
    const auto heads = static_cast<int32_t>(
        std::max(1.0, static_cast<double>(problem.kv_heads) * part_ns_max / static_cast<double>(ns)));
    for (int32_t begin = 0; begin < problem.kv_heads; begin += heads) {
      const int32_t count = std::min(heads, problem.kv_heads - begin);
      append(HeadSlice(problem, launch, begin, count), ns * count / problem.kv_heads);
    }
  }
  return parts;
}

}  // namespace attend::server
