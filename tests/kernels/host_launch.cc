#include "tests/kernels/host_launch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/host_float.h"
#include "tests/kernels/reference.h"

namespace attend::test {
namespace {

constexpr uint8_t kPoison = 0xff;
// Between tensors: more than a tile's overrun in small launches, less where there are many problems.
constexpr int64_t kGuardBytes = 16 << 10;
constexpr int64_t kGuardBytesTotal = 64 << 20;

// Hands out addresses of one region. With a null base it only counts.
class Bump {
 public:
  Bump(void* base, int64_t guard_bytes) : base_(reinterpret_cast<uintptr_t>(base)), guard_(guard_bytes) {
    used_ = guard_;
  }
  // Aligned to `alignment` bytes and no more, so that nothing relies on more.
  void* Take(int64_t bytes, int64_t alignment) {
    used_ = (used_ + 255) / 256 * 256 + alignment;
    void* p = reinterpret_cast<void*>(base_ + used_);
    used_ += bytes + guard_;
    return p;
  }
  int64_t used() const { return (used_ + 255) / 256 * 256; }

 private:
  uintptr_t base_;
  int64_t guard_;
  int64_t used_ = 0;
};

Strides MakeStrides(const ProblemSpec& spec, int64_t len, int64_t heads, int64_t dim) {
  Strides s;
  switch (spec.axes) {
    case Axes::kHeadsFirst:
      s = {dim, len * dim};
      break;
    case Axes::kTokensFirst:
      s = {heads * dim, dim};
      break;
    case Axes::kGaps:
      s = {heads * (dim + 8) + 16, dim + 8};
      break;
  }
  if (spec.wild_strides && heads == 1) s.head = 3;
  if (spec.wild_strides && len == 1) s.token = 1234567;
  return s;
}

// Elements from the first to one behind the last.
int64_t Extent(const Strides& s, int64_t len, int64_t heads, int64_t dim) {
  if (len == 0 || heads == 0) return 0;
  return (len - 1) * s.token * (len > 1) + (heads - 1) * s.head * (heads > 1) + dim;
}

ScoreStrides MakeStrides(const ScoreAxes& axes, int64_t rows, int64_t keys) {
  const int64_t row = axes.keys ? keys : 1;
  const int64_t head = axes.rows ? rows * row : row;
  return {axes.heads ? head : 0, axes.rows ? row : 0, axes.keys ? 1 : 0};
}

void PlacePages(const LaunchSpec& launch, const ProblemSpec& spec, Bump& in, Problem& p) {
  const int64_t tokens = spec.page_tokens;
  const int64_t used = (spec.kv_len + tokens - 1) / tokens;
  const int64_t pool = used + 3;  // some pages belong to others
  p.pages.tokens = spec.page_tokens;
  p.pages.table = static_cast<int32_t*>(in.Take((used + 5) * 4, 4));
  p.k_strides = MakeStrides(spec, tokens, spec.kv_heads, launch.head_dim);
  p.v_strides = MakeStrides(spec, tokens, spec.kv_heads, launch.v_head_dim);
  const auto page = [&](const Strides& s, int64_t dim) {
    return (Extent(s, tokens, spec.kv_heads, dim) + 7) / 8 * 8 + 64;
  };
  p.pages.k_page_stride = page(p.k_strides, launch.head_dim);
  p.pages.v_page_stride = page(p.v_strides, launch.v_head_dim);
  const int64_t size = SizeOf(launch.dtype);
  p.k = in.Take(pool * p.pages.k_page_stride * size, 16);
  p.v = in.Take(pool * p.pages.v_page_stride * size, 16);
}

Problem PlaceProblem(const LaunchSpec& launch, const ProblemSpec& spec, Bump& in, Bump& out) {
  const int64_t size = SizeOf(launch.dtype);
  Problem p;
  p.q_len = spec.q_len;
  p.kv_len = spec.kv_len;
  p.q_len_padded = spec.q_len + spec.q_padding;
  p.kv_len_padded = spec.kv_len + spec.kv_padding;
  p.q_heads = spec.q_heads;
  p.kv_heads = spec.kv_heads;
  p.q_strides = MakeStrides(spec, p.q_len_padded, p.q_heads, launch.head_dim);
  p.out_strides = MakeStrides(spec, p.q_len_padded, p.q_heads, launch.v_head_dim);
  p.q = in.Take(Extent(p.q_strides, p.q_len_padded, p.q_heads, launch.head_dim) * size, 16);
  p.out = out.Take(
      Extent(p.out_strides, p.q_len_padded, p.q_heads, launch.v_head_dim) * (launch.partial ? 4 : size), 16);
  if (spec.page_tokens > 0) {
    PlacePages(launch, spec, in, p);
  } else {
    p.k_strides = MakeStrides(spec, p.kv_len_padded, p.kv_heads, launch.head_dim);
    p.v_strides = MakeStrides(spec, p.kv_len_padded, p.kv_heads, launch.v_head_dim);
    p.k = in.Take(Extent(p.k_strides, p.kv_len_padded, p.kv_heads, launch.head_dim) * size, 16);
    p.v = in.Take(Extent(p.v_strides, p.kv_len_padded, p.kv_heads, launch.v_head_dim) * size, 16);
  }
  if (spec.lse || launch.partial) {
    p.lse_head_stride = p.q_len_padded + 3;
    p.lse = static_cast<float*>(out.Take(p.q_heads * p.lse_head_stride * 4, 4));
  }
  const auto score_elements = [&](const ScoreAxes& a) {
    return (a.heads ? p.q_heads : 1) * (a.rows ? p.q_len_padded : 1) * (a.keys ? p.kv_len_padded : 1);
  };
  if (spec.bias) {
    p.bias_is_fp32 = spec.bias_is_fp32;
    const int64_t bias_size = spec.bias_is_fp32 ? 4 : size;
    p.bias_strides = MakeStrides(*spec.bias, p.q_len_padded, p.kv_len_padded);
    p.bias = in.Take(score_elements(*spec.bias) * bias_size, bias_size);
  }
  if (spec.mask) {
    p.mask_strides = MakeStrides(*spec.mask, p.q_len_padded, p.kv_len_padded);
    p.mask = static_cast<uint8_t*>(in.Take(score_elements(*spec.mask), 1));
  }
  if (spec.alibi) p.alibi_slopes = static_cast<float*>(in.Take(p.q_heads * 4, 4));
  if (spec.sinks) p.sinks = static_cast<float*>(in.Take(p.q_heads * 4, 4));
  if (spec.weights != Weights::kNone) {
    int64_t rows = p.q_len_padded;
    if (spec.weights == Weights::kRows) {
      rows = static_cast<int64_t>(spec.weight_rows.size());
      p.weight_rows = static_cast<int64_t*>(in.Take(rows * 8, 8));
      p.weight_row_count = rows;
    }
    p.weights_row_stride = p.kv_len_padded + 1;
    p.weights_head_stride = rows * p.weights_row_stride + 5;
    p.weights = static_cast<float*>(out.Take(p.q_heads * p.weights_head_stride * 4, 4));
  }
  p.scale = spec.scale.value_or(1.0f / std::sqrt(static_cast<float>(launch.head_dim)));
  p.softcap = spec.softcap;
  p.causal = spec.causal;
  p.window_left = spec.window_left;
  p.window_right = spec.window_right;
  return p;
}

// Fresh pages from the system: they cost nothing until touched.
Region Map(int64_t bytes, bool output) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) std::abort();
  std::memset(data, kPoison, bytes);
  return {data, bytes, output};
}

class Values {
 public:
  Values(Fill fill, float constant, std::mt19937_64& random)
      : fill_(fill), constant_(constant), random_(random) {}
  float Next() {
    if (fill_ == Fill::kConstant) return constant_;
    const float x = normal_(random_);
    if (fill_ == Fill::kOutliers && random_() % 1000 == 0) return 10.0f * x;
    return x;
  }

 private:
  Fill fill_;
  float constant_;
  std::mt19937_64& random_;
  std::normal_distribution<float> normal_;
};

void FillScores(const ProblemSpec& spec, DataType dtype, Problem& p, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const auto each = [&](const ScoreAxes& axes, const ScoreStrides& s, const auto& set) {
    for (int64_t h = 0; h < (axes.heads ? p.q_heads : 1); ++h) {
      for (int64_t i = 0; i < (axes.rows ? p.q_len : 1); ++i) {
        for (int64_t j = 0; j < (axes.keys ? p.kv_len : 1); ++j) set(h * s.head + i * s.row + j * s.key);
      }
    }
  };
  if (spec.bias) {
    const DataType type = spec.bias_is_fp32 ? DataType::kFp32 : dtype;
    each(*spec.bias, p.bias_strides, [&](int64_t at) {
      const float x = spec.bias_infinities && random() % 8 == 0 ? -INFINITY : normal(random);
      Store(const_cast<void*>(p.bias), type, at, x);
    });
  }
  if (spec.mask) {
    each(*spec.mask, p.mask_strides,
         [&](int64_t at) { const_cast<uint8_t*>(p.mask)[at] = random() % 4 != 0; });
  }
}

void FillPageTable(const ProblemSpec& spec, Problem& p, std::mt19937_64& random) {
  if (spec.page_tokens == 0) return;
  const int64_t used = (p.kv_len + spec.page_tokens - 1) / spec.page_tokens;
  std::vector<int32_t> pages(used + 3);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  int32_t* table = const_cast<int32_t*>(p.pages.table);
  std::copy_n(pages.begin(), used, table);
  // Entries that nobody may read.
  for (int64_t i = used; i < used + 5; ++i) table[i] = i % 2 == 0 ? 0x7fffffff : -1;
}

}  // namespace

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("ATTEND_TEST_SEED");
    const uint64_t s = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("ATTEND_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    std::fflush(stdout);
    return s;
  }();
  return seed;
}

// Seeded by the test's name and a count within it: a single test run by a filter sees the same inputs.
std::mt19937_64 FreshRandom() {
  static std::string current;
  static uint64_t count = 0;
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = info == nullptr ? "" : absl::StrCat(info->test_suite_name(), info->name());
  if (name != current) {
    current = name;
    count = 0;
  }
  std::seed_seq seq{Seed(), static_cast<uint64_t>(std::hash<std::string>{}(name)), count++};
  return std::mt19937_64(seq);
}

std::string Describe(const LaunchSpec& spec) {
  std::string s = absl::StrCat("seed ", Seed(), ": ", std::string(Name(spec.kernel)), " ",
                               std::string(Name(spec.dtype)), " d ", spec.head_dim, "/", spec.v_head_dim,
                               spec.partial ? " partial" : "", ", ", spec.problems.size(), " problems");
  for (size_t i = 0; i < std::min<size_t>(spec.problems.size(), 4); ++i) {
    const ProblemSpec& p = spec.problems[i];
    absl::StrAppend(&s, "\n  [", i, "] q ", p.q_len, "+", p.q_padding, " kv ", p.kv_len, "+", p.kv_padding,
                    " heads ", p.q_heads, "/", p.kv_heads, " axes ", static_cast<int>(p.axes), " causal ",
                    static_cast<int>(p.causal), " window ", p.window_left, ",", p.window_right);
    if (p.scale) absl::StrAppend(&s, " scale ", *p.scale);
    if (p.softcap > 0) absl::StrAppend(&s, " softcap ", p.softcap);
    const auto axes = [&s](const char* name, const std::optional<ScoreAxes>& a) {
      if (a)
        absl::StrAppend(&s, " ", name, " ", a->heads ? "h" : "1", a->rows ? "q" : "1", a->keys ? "k" : "1");
    };
    axes(p.bias_is_fp32 ? "fp32 bias" : "bias", p.bias);
    axes("mask", p.mask);
    if (p.alibi) absl::StrAppend(&s, " alibi");
    if (p.sinks) absl::StrAppend(&s, " sinks");
    if (p.wild_strides) absl::StrAppend(&s, " wild strides");
    if (p.page_tokens > 0) absl::StrAppend(&s, " pages of ", p.page_tokens);
    if (p.weights != Weights::kNone) absl::StrAppend(&s, " weights ", static_cast<int>(p.weights));
  }
  return s;
}

HostLaunch::HostLaunch(const LaunchSpec& spec) {
  const int64_t tensors = 12 * static_cast<int64_t>(spec.problems.size()) + 1;
  const int64_t guard = std::min(kGuardBytes, kGuardBytesTotal / tensors);
  Bump count_in(nullptr, guard), count_out(nullptr, guard);
  for (const ProblemSpec& p : spec.problems) PlaceProblem(spec, p, count_in, count_out);
  regions_ = {Map(count_in.used(), false), Map(count_out.used(), true)};
  Bump in(regions_[0].data, guard), out(regions_[1].data, guard);
  for (const ProblemSpec& p : spec.problems) problems_.push_back(PlaceProblem(spec, p, in, out));
  launch_.kernel = spec.kernel;
  launch_.dtype = spec.dtype;
  launch_.head_dim = spec.head_dim;
  launch_.v_head_dim = spec.v_head_dim;
  launch_.partial = spec.partial;
  launch_.problems = problems_;
  FillInputs(spec);
}

HostLaunch::~HostLaunch() {
  for (const Region& r : regions_) munmap(r.data, r.bytes);
}

void HostLaunch::FillInputs(const LaunchSpec& spec) {
  std::mt19937_64 random = FreshRandom();
  for (size_t i = 0; i < problems_.size(); ++i) FillProblem(spec.problems[i], problems_[i], random);
}

void HostLaunch::FillProblem(const ProblemSpec& spec, Problem& p, std::mt19937_64& random) {
  Values values(spec.fill, spec.constant, random);
  FillPageTable(spec, p, random);
  const size_t at = &p - problems_.data();
  for (int64_t h = 0; h < p.q_heads; ++h) {
    for (int64_t i = 0; i < p.q_len; ++i) {
      for (int64_t d = 0; d < launch_.head_dim; ++d) SetQ(at, h, i, d, values.Next());
    }
  }
  for (int64_t h = 0; h < p.kv_heads; ++h) {
    for (int64_t j = 0; j < p.kv_len; ++j) {
      for (int64_t d = 0; d < launch_.head_dim; ++d) SetK(at, h, j, d, values.Next());
      for (int64_t d = 0; d < launch_.v_head_dim; ++d) SetV(at, h, j, d, values.Next());
    }
  }
  FillScores(spec, launch_.dtype, p, random);
  for (int64_t h = 0; h < p.q_heads; ++h) {
    if (p.alibi_slopes != nullptr) Mutable(p.alibi_slopes)[h] = std::exp2(-1.0f - static_cast<float>(h % 8));
    if (p.sinks != nullptr) Mutable(p.sinks)[h] = std::normal_distribution<float>(1.0f)(random);
  }
  if (p.weight_rows != nullptr)
    std::copy(spec.weight_rows.begin(), spec.weight_rows.end(), Mutable(p.weight_rows));
}

Launch HostLaunch::Only(size_t problem) const {
  Launch one = launch_;
  one.problems = launch_.problems.subspan(problem, 1);
  return one;
}

void HostLaunch::SetQ(size_t problem, int64_t head, int64_t row, int64_t dim, float x) {
  const Problem& p = problems_[problem];
  Store(Mutable(p.q), launch_.dtype, row * p.q_strides.token + head * p.q_strides.head + dim, x);
}

void HostLaunch::SetK(size_t problem, int64_t head, int64_t key, int64_t dim, float x) {
  Store(Mutable(problems_[problem].k), launch_.dtype, KOffset(problems_[problem], key, head) + dim, x);
}

void HostLaunch::SetV(size_t problem, int64_t head, int64_t key, int64_t dim, float x) {
  Store(Mutable(problems_[problem].v), launch_.dtype, VOffset(problems_[problem], key, head) + dim, x);
}

void HostLaunch::FillK(size_t problem, int64_t head, int64_t key, float x) {
  for (int64_t d = 0; d < launch_.head_dim; ++d) SetK(problem, head, key, d, x);
}

void HostLaunch::FillV(size_t problem, int64_t head, int64_t key, float x) {
  for (int64_t d = 0; d < launch_.v_head_dim; ++d) SetV(problem, head, key, d, x);
}

float HostLaunch::Out(size_t problem, int64_t head, int64_t row, int64_t dim) const {
  const Problem& p = problems_[problem];
  return Load(p.out, launch_.partial ? DataType::kFp32 : launch_.dtype,
              row * p.out_strides.token + head * p.out_strides.head + dim);
}

float HostLaunch::Lse(size_t problem, int64_t head, int64_t row) const {
  const Problem& p = problems_[problem];
  return p.lse[head * p.lse_head_stride + row];
}

std::vector<uint8_t> HostLaunch::Bits(size_t problem) const {
  const Problem& p = problems_[problem];
  const int64_t size = launch_.partial ? 4 : SizeOf(launch_.dtype);
  std::vector<uint8_t> bits;
  const auto append = [&bits](const void* data, int64_t bytes) {
    const auto* b = static_cast<const uint8_t*>(data);
    bits.insert(bits.end(), b, b + bytes);
  };
  for (int64_t h = 0; h < p.q_heads; ++h) {
    for (int64_t i = 0; i < p.q_len_padded; ++i) {
      const int64_t at = i * p.out_strides.token + h * p.out_strides.head;
      append(static_cast<const uint8_t*>(p.out) + at * size, launch_.v_head_dim * size);
    }
    if (p.lse != nullptr) append(p.lse + h * p.lse_head_stride, p.q_len_padded * 4);
  }
  return bits;
}

void HostLaunch::PoisonOutputs() { std::memset(regions_[1].data, kPoison, regions_[1].bytes); }

void HostLaunch::ExpectUntouched() const {
  const auto* written = static_cast<const uint8_t*>(regions_[1].data);
  std::vector<uint8_t> rest(written, written + regions_[1].bytes);
  const auto forget = [&](const void* data, int64_t bytes) {
    std::memset(rest.data() + (static_cast<const uint8_t*>(data) - written), kPoison, bytes);
  };
  const int64_t size = launch_.partial ? 4 : SizeOf(launch_.dtype);
  for (const Problem& p : problems_) {
    for (int64_t h = 0; h < p.q_heads; ++h) {
      for (int64_t i = 0; i < p.q_len_padded; ++i) {
        const int64_t at = i * p.out_strides.token + h * p.out_strides.head;
        forget(static_cast<const uint8_t*>(p.out) + at * size, launch_.v_head_dim * size);
      }
      if (p.lse != nullptr) forget(p.lse + h * p.lse_head_stride, p.q_len_padded * 4);
      if (p.weights == nullptr) continue;
      for (int64_t r = 0; r < (p.weight_rows != nullptr ? p.weight_row_count : p.q_len_padded); ++r) {
        forget(p.weights + h * p.weights_head_stride + r * p.weights_row_stride, p.kv_len_padded * 4);
      }
    }
  }
  const int64_t touched =
      std::count_if(rest.begin(), rest.end(), [](uint8_t byte) { return byte != kPoison; });
  EXPECT_EQ(touched, 0) << "bytes written outside of the outputs";
}

}  // namespace attend::test
