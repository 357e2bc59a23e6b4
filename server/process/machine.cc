#include "server/process/machine.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

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

void KeepFreedMemory(int64_t bytes) {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(std::min<int64_t>(bytes, std::numeric_limits<int>::max())));
  // To set one threshold ends glibc's own adjustment of the other: to where it would have ended up, its
  // largest. Blocks above it are mapped and unmapped one by one.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
#else
  (void)bytes;
#endif
}

}  // namespace attend::server
