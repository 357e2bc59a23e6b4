// Sizes at their limits: offsets beyond 32 bits, counts beyond 16 (cases K12, K13).
#include <sys/mman.h>

#include <cstring>

#include "tests/kernels/cases/kernel_case.h"
#include "tests/kernels/host_float.h"

namespace attend::test {
namespace {

using SizeCase = KernelCase;
INSTANTIATE_TEST_SUITE_P(Kernels, SizeCase, ::testing::ValuesIn(AllParams()), ParamName);

// Zeroed memory that costs nothing where it is not touched.
class SparseRegion {
 public:
  SparseRegion(int64_t bytes, bool output) {
    void* data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    region_ = {data, bytes, output};
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
  SparseRegion q(bytes, false), k(bytes, false), v(bytes, false), out(bytes, true), lse(4096, true);
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
  p.q_strides = p.k_strides = p.v_strides = p.out_strides =
      tokens_far ? Strides{kFar, kDim} : Strides{kDim, kFar};
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

// [2600, 16, 729, 72], every sequence one of three, so that each is compared with a checked one, bit by bit.
TEST_P(SizeCase, K12_TensorsOfTwoBillionElements) {
  const int64_t batch = runner().large() ? 2600 : 3;
  const int64_t len = runner().large() ? 729 : 130;
  if (dtype() == DataType::kFp32 && runner().large()) GTEST_SKIP() << "35 GB more would show nothing new";
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
  SparseRegion q(batch * bytes, false), k(batch * bytes, false), v(batch * bytes, false),
      out(batch * bytes, true);
  std::vector<Problem> problems;
  const auto at = [bytes](const SparseRegion& r, int64_t i) {
    return static_cast<char*>(r.data()) + i * bytes;
  };
  for (int64_t i = 0; i < batch; ++i) {
    Problem p = three.problems()[i % 3];
    std::memcpy(at(q, i), p.q, bytes);
    std::memcpy(at(k, i), p.k, bytes);
    std::memcpy(at(v, i), p.v, bytes);
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
  int64_t different = 0;
  for (int64_t i = 0; i < batch; ++i) {
    different += std::memcmp(at(out, i), three.problems()[i % 3].out, bytes) != 0;
  }
  EXPECT_EQ(different, 0);
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
