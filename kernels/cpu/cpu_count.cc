#include "kernels/cpu/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

namespace attend::cpu {
namespace {

// The smaller of two quotas, 0 being none.
double Tighter(double a, double b) {
  if (a <= 0 || b <= 0) return std::max(a, b);
  return std::min(a, b);
}

// cpu.max: "max 100000" or "150000 100000", both in microseconds.
double QuotaV2(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

double QuotaV1(const std::string& directory) {
  double quota = 0, period = 0;
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

// The tightest quota of a cgroup and its ancestors. Inside a container the path may be the host's and not
// exist under the mount: the mount's own root still counts.
template <typename Quota>
double QuotaOfPath(const std::string& mount, std::string path, const Quota& quota) {
  double tightest = quota(mount);
  while (path.size() > 1) {
    tightest = Tighter(tightest, quota(mount + path));
    path.resize(path.rfind('/'));
  }
  return tightest;
}

bool HasController(const std::string& list, const std::string& name) {
  std::stringstream names(list);
  for (std::string one; std::getline(names, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

double CgroupCpuQuota(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  double tightest = 0;
  // Lines are "0::/path" (v2) or "4:cpu,cpuacct:/path" (v1).
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      tightest = Tighter(tightest, QuotaOfPath(root + "/sys/fs/cgroup", path, QuotaV2));
    } else if (HasController(controllers, "cpu")) {
      for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
        tightest = Tighter(tightest, QuotaOfPath(root + mount, path, QuotaV1));
      }
    }
  }
  return tightest;
}

int UsableCpus() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = CPU_COUNT(&set);
  const double quota = CgroupCpuQuota("");
  if (quota > 0) count = std::min(count, static_cast<int>(std::ceil(quota)));
  return std::max(count, 1);
}

}  // namespace attend::cpu
