#include "server/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace attend::server {
namespace {

// Seconds since the epoch at which the machine booted.
std::optional<double> BootTime() {
  std::ifstream stat("/proc/stat");
  std::string word;
  while (stat >> word) {
    double seconds = 0;
    if (word == "btime" && stat >> seconds) return seconds;
  }
  return std::nullopt;
}

// Fields of /proc/self/stat from the third on; the second is the name, which may hold anything.
std::vector<double> StatFields() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  std::vector<double> fields;
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(text.substr(name_end + 1));
  char state = 0;
  rest >> state;
  fields.push_back(0);
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

std::optional<double> CountFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return std::nullopt;
  double count = 0;
  while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(dir);
  return count - 1;  // the folder's own
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  ProcessFigures figures;
  const std::vector<double> stat = StatFields();
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  // proc(5): field n is stat[n - 3].
  if (stat.size() > 21) {
    figures.cpu_seconds = (stat[11] + stat[12]) / ticks;
    figures.threads = stat[17];
    if (const auto boot = BootTime()) figures.start_time_seconds = *boot + stat[19] / ticks;
    figures.virtual_bytes = stat[20];
    figures.resident_bytes = stat[21] * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  figures.open_fds = CountFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.max_fds = static_cast<double>(limit.rlim_cur);
  return figures;
}

}  // namespace attend::server
