// What memory this machine, or the container's share of it, offers.
#ifndef ATTEND_SERVER_PROCESS_MACHINE_H_
#define ATTEND_SERVER_PROCESS_MACHINE_H_

#include <cstdint>

namespace attend::server {

// Bytes of memory: the machine's, or the cgroup's limit where that is less.
int64_t MemoryBytes();

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_MACHINE_H_
