// Sizes at their limits: offsets beyond 32 bits, counts beyond 16 (cases K12, K13).
#include <sys/mman.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "tests/kernels/cases/kernel_case.h"
#include "tests/kernels/host_float.h"

namespace attend::test {
namespace {

using SizeCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, SizeCase, ::testing::ValuesIn(AllParams()), ParamName);

// Zeroed memory that costs nothing where it is not touched.
class SparseRegion {
 public:
  SparseRegion(int64_t bytes, bool output, std::vector<Region::Span> touched) {
    void* data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    region_ = {data, bytes, output, std::move(touched)};
  }
  ~SparseRegion() { munmap(region_.data, region_.bytes); }
  SparseRegion(const SparseRegion&) = delete;
  SparseRegion& operator=(const SparseRegion&) = delete;
  const Region& region() const { return region_; }
  void* data() const { return region_.data; }

 private:
  Region region_;
};

// A few tokens (or heads) so far apart that the last lies beyond 2^31 elements.
void FarApart(Runner& runner, const KernelParam& param, bool tokens_far) {
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  constexpr int64_t kDim = 64, kTokens = 3, kHeads = 3;
  const int64_t bytes = (2 * kFar + kTokens * kDim) * SizeOf(param.dtype) + 4096;
  if (4 * bytes > runner.sparse_bytes_max())
    GTEST_SKIP() << "needs " << 4 * bytes << " bytes of device memory";
  const Strides strides = tokens_far ? Strides{kFar, kDim} : Strides{kDim, kFar};
  std::vector<Region::Span> touched;
  for (int64_t i = 0; i < kTokens * kHeads; ++i) {
    const int64_t at = i / kHeads * strides.token + i % kHeads * strides.head;
    touched.push_back({at * SizeOf(param.dtype), kDim * SizeOf(param.dtype)});
  }
  SparseRegion q(bytes, false, touched), k(bytes, false, touched), v(bytes, false, touched),
      out(bytes, true, touched), lse(4096, true, {});
  Problem p;
  p.q_len = p.kv_len = p.q_len_padded = p.kv_len_padded = kTokens;
  p.q_heads = p.kv_heads = kHeads;
  p.scale = 0.125f;
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  p.out = out.data();
  p.lse = static_cast<float*>(lse.data());
  p.lse_head_stride = kTokens;
  p.q_strides = p.k_strides = p.v_strides = p.out_strides = strides;
  std::mt19937_64 random = FreshRandom();
  std::normal_distribution<float> normal;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t d = 0; d < kDim; ++d) {
        const int64_t at = i * p.q_strides.token + h * p.q_strides.head + d;
        for (void* tensor : {q.data(), k.data(), v.data()}) Store(tensor, param.dtype, at, normal(random));
      }
    }
  }
  Launch launch;
  launch.kernel = param.kernel;
  launch.dtype = param.dtype;
  launch.head_dim = launch.v_head_dim = kDim;
  launch.problems = {&p, 1};
  const std::vector<Region> regions = {q.region(), k.region(), v.region(), out.region(), lse.region()};
  const absl::Status status = runner.Run(launch, regions);
  ASSERT_TRUE(status.ok()) << status;
  ExpectAccurate(launch);
}

TEST_P(SizeCase, K12_TokensBeyond31Bits) { FarApart(runner(), GetParam(), true); }

TEST_P(SizeCase, K12_HeadsBeyond31Bits) { FarApart(runner(), GetParam(), false); }

// [2600, 16, 729, 72]. Some sequences, at both ends and around 2^31 elements and bytes and 2^32 bytes, are
// copies of three that are checked, and are compared with them bit by bit; the others are zeros.
TEST_P(SizeCase, K12_TensorsOfTwoBillionElements) {
  const int64_t batch = runner().large() ? 2600 : 3;
  const int64_t len = runner().large() ? 729 : 130;
  if (dtype() == DataType::kFp32 && kernel() != Kernel::kFlash && runner().large()) {
    GTEST_SKIP() << "needs more memory than a GPU has";
  }
  LaunchSpec model = Spec({{.q_len = len, .kv_len = len, .q_heads = 16, .kv_heads = 16},
                           {.q_len = len, .kv_len = len, .q_heads = 16, .kv_heads = 16},
                           {.q_len = len, .kv_len = len, .q_heads = 16, .kv_heads = 16}},
                          72);
  HostLaunch three(model);
  Run(three);
  // The reference of one head in each is enough here: other cases check the rest.
  for (size_t i = 0; i < 3; ++i) {
    Problem one = three.problems()[i];
    one.q_heads = one.kv_heads = 1;
    ExpectAccurate(three.launch(), one);
  }
  const int64_t elements = 16 * len * 72;
  const int64_t bytes = elements * SizeOf(dtype());
  std::set<int64_t> chosen;
  for (const int64_t middle : {int64_t{0}, (int64_t{1} << 31) / elements, (int64_t{1} << 31) / bytes,
                               (int64_t{1} << 32) / bytes, batch - 1}) {
    for (int64_t i = middle - 1; i <= middle + 1; ++i) {
      if (i >= 0 && i < batch) chosen.insert(i);
    }
  }
  std::vector<Region::Span> touched;
  for (const int64_t i : chosen) touched.push_back({i * bytes, bytes});
  SparseRegion q(batch * bytes, false, touched), k(batch * bytes, false, touched),
      v(batch * bytes, false, touched), out(batch * bytes, true, touched);
  std::vector<Problem> problems;
  const auto at = [bytes](const SparseRegion& r, int64_t i) {
    return static_cast<char*>(r.data()) + i * bytes;
  };
  for (int64_t i = 0; i < batch; ++i) {
    Problem p = three.problems()[i % 3];
    if (chosen.contains(i)) {
      std::memcpy(at(q, i), p.q, bytes);
      std::memcpy(at(k, i), p.k, bytes);
      std::memcpy(at(v, i), p.v, bytes);
    }
    p.q = at(q, i);
    p.k = at(k, i);
    p.v = at(v, i);
    p.out = at(out, i);
    p.lse = nullptr;
    problems.push_back(p);
  }
  Launch launch = three.launch();
  launch.problems = problems;
  const std::vector<Region> regions = {q.region(), k.region(), v.region(), out.region()};
  const absl::Status status = runner().Run(launch, regions);
  ASSERT_TRUE(status.ok()) << status;
  for (const int64_t i : chosen) {
    EXPECT_EQ(std::memcmp(at(out, i), three.problems()[i % 3].out, bytes), 0) << "sequence " << i;
  }
}

TEST_P(SizeCase, K13_ManyQueries) {
  RunAndCheck(Spec({{.q_len = 33728, .kv_len = 17, .q_heads = 1, .kv_heads = 1}}, 8));
}

TEST_P(SizeCase, K13_ManyProblems) {
  const ProblemSpec one{.q_len = 1, .kv_len = 3, .q_heads = 1, .kv_heads = 1};
  RunAndCheck(Spec(std::vector<ProblemSpec>(65537, one), 8));
}

TEST_P(SizeCase, K13_ManyHeads) {
  RunAndCheck(Spec({{.q_len = 1, .kv_len = 5, .q_heads = 65536, .kv_heads = 65536}}, 8));
  RunAndCheck(Spec({{.q_len = 2, .kv_len = 5, .q_heads = 65537, .kv_heads = 1}}, 8));
}

TEST_P(SizeCase, K13_ManyKeys) {
  RunAndCheck(Spec({{.q_len = 1, .kv_len = 70001, .q_heads = 2, .kv_heads = 1}}, 16));
}

}  // namespace
}  // namespace attend::test
