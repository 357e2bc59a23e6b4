#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "server/device/cpu_device.h"

namespace attend::server {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Processors that one cgroup allows: cpu.max of version 2, cfs quota of version 1.
double Quota(const std::string& directory) {
  std::string quota;
  double period = 0;
  if (std::ifstream file(directory + "/cpu.max"); file >> quota >> period) {
    return quota == "max" || period <= 0 ? kUnlimited : std::stod(quota) / period;
  }
  double microseconds = 0;
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  if (quota_file >> microseconds && period_file >> period && microseconds > 0 && period > 0) {
    return microseconds / period;
  }
  return kUnlimited;
}

// The least that this process's cgroup and those above it allow.
double CgroupQuota() {
  const std::string root = "/sys/fs/cgroup";
  double quota = std::min(Quota(root), Quota(root + "/cpu"));
  std::ifstream self("/proc/self/cgroup");
  for (std::string line; std::getline(self, line);) {
    // hierarchy:controllers:path; version 2 has no controllers.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v1_cpu = ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (!controllers.empty() && !v1_cpu) continue;
    std::string path = line.substr(second + 1);
    while (path.size() > 1) {
      quota = std::min(quota, Quota(root + (v1_cpu ? "/cpu" : "") + path));
      path.resize(path.rfind('/'));
    }
  }
  return quota;
}

}  // namespace

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // More processors than the set holds: the call fails, and the count of all of them stands.
  double cpus =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : std::thread::hardware_concurrency();
  cpus = std::min(cpus, std::ceil(CgroupQuota()));
  return std::max(1, static_cast<int>(cpus));
}

}  // namespace attend::server
