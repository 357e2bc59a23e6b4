// The fixture of the kernel cases: each is written once and runs for every kernel and data type on the
// device of MakeRunner().
#ifndef ATTEND_TESTS_KERNELS_CASES_KERNEL_CASE_H_
#define ATTEND_TESTS_KERNELS_CASES_KERNEL_CASE_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/accuracy.h"
#include "tests/kernels/host_launch.h"
#include "tests/kernels/runner.h"

namespace attend::test {

struct KernelParam {
  Kernel kernel;
  DataType dtype;
};
// "FLASH_bf16".
std::string ParamName(const ::testing::TestParamInfo<KernelParam>& info);
// Every kernel and data type.
std::vector<KernelParam> AllParams();

class KernelCase : public ::testing::TestWithParam<KernelParam> {
 protected:
  void SetUp() override;

  static Runner& runner();
  Kernel kernel() const { return GetParam().kernel; }
  DataType dtype() const { return GetParam().dtype; }
  // Weights of all rows where the kernel forms them.
  Weights AllWeights() const { return kernel() == Kernel::kFlash ? Weights::kNone : Weights::kAll; }

  LaunchSpec Spec(std::vector<ProblemSpec> problems, int32_t head_dim = 64, int32_t v_head_dim = 0) const;
  // Runs it on poisoned outputs.
  void Run(HostLaunch& host);
  // Runs it, compares every output with the reference, and looks for writes outside of the outputs.
  void RunAndCheck(HostLaunch& host);
  void RunAndCheck(const LaunchSpec& spec);
};

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_CASES_KERNEL_CASE_H_
