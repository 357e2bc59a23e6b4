// Launches over host memory with random inputs, every unused byte poisoned with NaN.
//
//   LaunchSpec spec{.kernel = Kernel::kFlash, .dtype = DataType::kBf16};
//   spec.problems.push_back({.q_len = 100, .kv_len = 300, .causal = Causal::kBottomRight});
//   HostLaunch host(spec);
//   runner.Run(host.launch(), host.regions());
//   host.ExpectUntouched();
#ifndef ATTEND_TESTS_KERNELS_HOST_LAUNCH_H_
#define ATTEND_TESTS_KERNELS_HOST_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/runner.h"

namespace attend::test {

enum class Axes {
  kHeadsFirst,   // [heads, length, dim]
  kTokensFirst,  // [length, heads, dim]
  kGaps,         // as tokens first, with unused elements between tokens and between heads
};

enum class Fill {
  kNormal,    // N(0, 1)
  kOutliers,  // N(0, 1), and one value in a thousand from N(0, 100)
  kConstant,
};

// Which dimensions of a bias or mask are not broadcast.
struct ScoreAxes {
  bool heads = true;
  bool rows = true;
  bool keys = true;
};

enum class Weights { kNone, kAll, kRows };

struct ProblemSpec {
  int64_t q_len = 64;
  int64_t kv_len = 64;
  int64_t q_padding = 0;   // rows of q and out behind q_len
  int64_t kv_padding = 0;  // tokens of k and v (columns of weights) behind kv_len
  int32_t q_heads = 2;
  int32_t kv_heads = 2;
  Axes axes = Axes::kHeadsFirst;
  bool wild_strides = false;  // dimensions of size 1 get absurd strides
  Fill fill = Fill::kNormal;
  float constant = 1.0f;

  std::optional<float> scale = {};  // unset: 1/sqrt(head_dim)
  float softcap = 0.0f;
  Causal causal = Causal::kNone;
  int64_t window_left = kUnbounded;
  int64_t window_right = kUnbounded;
  std::optional<ScoreAxes> bias = {};
  bool bias_is_fp32 = false;
  bool bias_infinities = false;  // some entries are -inf
  std::optional<ScoreAxes> mask = {};
  bool alibi = false;
  bool sinks = false;
  int32_t page_tokens = 0;  // 0: not paged
  bool lse = true;
  Weights weights = Weights::kNone;
  std::vector<int64_t> weight_rows = {};
};

struct LaunchSpec {
  Kernel kernel = Kernel::kFlash;
  DataType dtype = DataType::kFp32;
  int32_t head_dim = 64;
  int32_t v_head_dim = 64;
  bool partial = false;
  std::vector<ProblemSpec> problems = {};
};

// One line that tells a failing case apart.
std::string Describe(const LaunchSpec& spec);

// The run's seed: ATTEND_TEST_SEED, else fresh; printed once.
uint64_t Seed();
// A fresh generator, different for each call of a run and the same for each run with the same seed.
std::mt19937_64 FreshRandom();

// Memory of a launch: one region of inputs and one of outputs. All poison is bytes of 0xff: NaN in every
// floating type, -1 as an integer.
class HostLaunch {
 public:
  explicit HostLaunch(const LaunchSpec& spec);
  ~HostLaunch();
  HostLaunch(const HostLaunch&) = delete;
  HostLaunch& operator=(const HostLaunch&) = delete;

  const Launch& launch() const { return launch_; }
  std::span<const Region> regions() const { return regions_; }
  // Problems may be changed before a run (scale, masks; not what decides memory).
  std::span<Problem> problems() { return problems_; }

  // One problem alone.
  Launch Only(size_t problem) const;

  // Elements of problem p, rounded to the dtype.
  void SetQ(size_t problem, int64_t head, int64_t row, int64_t dim, float x);
  void SetK(size_t problem, int64_t head, int64_t key, int64_t dim, float x);
  void SetV(size_t problem, int64_t head, int64_t key, int64_t dim, float x);
  // All elements of the token.
  void FillK(size_t problem, int64_t head, int64_t key, float x);
  void FillV(size_t problem, int64_t head, int64_t key, float x);
  // Writable views of inputs that problems hold as const.
  template <typename T>
  static T* Mutable(const T* p) {
    return const_cast<T*>(p);
  }

  float Out(size_t problem, int64_t head, int64_t row, int64_t dim) const;
  float Lse(size_t problem, int64_t head, int64_t row) const;
  // out and lse of one problem as raw bytes, to compare runs bit by bit.
  std::vector<uint8_t> Bits(size_t problem) const;

  void PoisonOutputs();
  // Fails the test where a byte that belongs to no output element was written.
  void ExpectUntouched() const;

 private:
  void FillInputs(const LaunchSpec& spec);
  void FillProblem(const ProblemSpec& spec, Problem& problem, std::mt19937_64& random);

  Launch launch_;
  std::vector<Problem> problems_;
  std::vector<Region> regions_;
};

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_HOST_LAUNCH_H_
