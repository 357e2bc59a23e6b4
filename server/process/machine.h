// What memory this machine, or the container's share of it, offers, and how the heap keeps it.
#ifndef ATTEND_SERVER_PROCESS_MACHINE_H_
#define ATTEND_SERVER_PROCESS_MACHINE_H_

#include <cstdint>

namespace attend::server {

// Bytes of memory: the machine's, or the cgroup's limit where that is less.
int64_t MemoryBytes();

// Lets each thread's heap keep up to so many freed bytes for what comes next. By itself glibc gives a freed
// message back to the system, and the next one pays for every page again, which on a virtual machine costs
// more than the copy of its bytes. Before other threads start; without effect on other C libraries.
void KeepFreedMemory(int64_t bytes);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_MACHINE_H_
