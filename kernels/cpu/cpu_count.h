// How many CPUs this process may use.
#ifndef ATTEND_KERNELS_CPU_CPU_COUNT_H_
#define ATTEND_KERNELS_CPU_CPU_COUNT_H_

#include <string>

namespace attend::cpu {

// CPUs of the affinity mask, and no more than the CPU quota of the process's cgroups (v2 or v1, its
// ancestors' too), rounded up; at least 1. std::thread::hardware_concurrency ignores quotas, and a pool
// larger than its quota is throttled in bursts.
int UsableCpus();

// The quota alone, in CPUs, 0 for none; root is where /proc and /sys are looked for.
double CgroupCpuQuota(const std::string& root);

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_CPU_COUNT_H_
