// The kernel cases on the CPU. ATTEND_TEST_INSTRUCTIONS=AVX512_BF16|AVX512|AVX2|SSE4|BASELINE forbids better
// instruction sets, so that each is tested on a machine that has all; where one is not there, the cases are
// skipped. AVX512_BF16 is used even where it does not pay.
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/cpu/bf16_dot.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/runner.h"

namespace attend::test {
namespace {

class CpuRunner : public Runner {
 public:
  CpuRunner() {
    const char* given = std::getenv("ATTEND_TEST_INSTRUCTIONS");
    const std::string best = given == nullptr ? "" : given;
    if (best == "AVX512_BF16") cpu::SetBf16Dot(true);
    if (best == "AVX512") cpu::SetBf16Dot(false);
    // A lower bit is a better target.
    if (best == "AVX2") hwy::DisableTargets(HWY_AVX2 - 1);
    if (best == "SSE4") hwy::DisableTargets(HWY_SSE4 - 1);
    if (best == "BASELINE") hwy::DisableTargets(HWY_SSE4 | (HWY_SSE4 - 1));
    const std::string wanted = best == "AVX512_BF16" ? "AVX-512 with BF16"
                               : best == "AVX512"    ? "AVX-512"
                               : best == "AVX2"      ? "AVX2"
                               : best == "SSE4"      ? "SSE4.1"
                                                     : "";  // whatever there is
    const std::string used = cpu::InstructionSet();
    if (!wanted.empty() && used != wanted) unavailable_ = absl::StrCat("no ", wanted, ", but ", used);
  }
  std::string Unavailable() const override { return unavailable_; }
  absl::Status Run(const Launch& launch, std::span<const Region>) override {
    // An invalid launch has no workspace to speak of.
    if (absl::Status s = CheckLaunch(launch); !s.ok()) return s;
    // Exactly as much as is asked for, so that a sanitizer sees a byte more.
    const int64_t bytes = cpu::WorkspaceBytes(launch, pool_.thread_count());
    const std::unique_ptr<void, decltype(&std::free)> workspace(
        std::aligned_alloc(64, static_cast<size_t>(bytes + 63) / 64 * 64), &std::free);
    return cpu::Run(launch, workspace.get(), bytes, pool_);
  }

 private:
  std::string unavailable_;
  cpu::ThreadPool pool_{2};
};

}  // namespace

std::unique_ptr<Runner> MakeRunner() { return std::make_unique<CpuRunner>(); }

}  // namespace attend::test
