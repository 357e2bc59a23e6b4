#include "tests/kernels/cases/kernel_case.h"

#include <algorithm>
#include <cctype>
#include <memory>

namespace attend::test {

std::string ParamName(const ::testing::TestParamInfo<KernelParam>& info) {
  std::string kernel(Name(info.param.kernel));
  std::transform(kernel.begin(), kernel.end(), kernel.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return kernel + "_" + std::string(Name(info.param.dtype));
}

std::vector<KernelParam> AllParams() {
  std::vector<KernelParam> params;
  for (const Kernel kernel : {Kernel::kNaive, Kernel::kOnline, Kernel::kFlash}) {
    for (const DataType dtype : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
      params.push_back({kernel, dtype});
    }
  }
  return params;
}

Runner& KernelCase::runner() {
  static const std::unique_ptr<Runner> runner = MakeRunner();
  return *runner;
}

void KernelCase::SetUp() {
  Seed();
  if (const std::string why = runner().Unavailable(); !why.empty()) GTEST_SKIP() << "ATTEND-SKIPPED: " << why;
}

LaunchSpec KernelCase::Spec(std::vector<ProblemSpec> problems, int32_t head_dim, int32_t v_head_dim) const {
  LaunchSpec spec;
  spec.kernel = kernel();
  spec.dtype = dtype();
  spec.head_dim = head_dim;
  spec.v_head_dim = v_head_dim == 0 ? head_dim : v_head_dim;
  spec.problems = std::move(problems);
  return spec;
}

void KernelCase::Run(HostLaunch& host) {
  host.PoisonOutputs();
  const absl::Status status = runner().Run(host.launch(), host.regions());
  ASSERT_TRUE(status.ok()) << status;
}

void KernelCase::RunAndCheck(HostLaunch& host) {
  Run(host);
  if (HasFatalFailure()) return;
  ExpectAccurate(host.launch());
  host.ExpectUntouched();
}

void KernelCase::RunAndCheck(const LaunchSpec& spec) {
  SCOPED_TRACE(Describe(spec));
  HostLaunch host(spec);
  RunAndCheck(host);
}

}  // namespace attend::test
