#include "server/process/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace attend::server {

int64_t MemoryBytes() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // cgroup v2, then v1. "max" does not parse, and a huge v1 number is above the machine's.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) return std::min(machine, limit);
  }
  return machine;
}

}  // namespace attend::server
