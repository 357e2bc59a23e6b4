// Attention on the CPU: the embedded default, and what the GPU kernels are compared with.
#ifndef ATTEND_KERNELS_CPU_CPU_ATTENTION_H_
#define ATTEND_KERNELS_CPU_CPU_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/work.h"

namespace attend::cpu {

// Runs fn(index, thread) for each index of [0, count), on as many threads as it likes, thread below
// thread_count(); returns when all are done. fn does not throw.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int thread_count() const = 0;
  virtual void For(int64_t count, const std::function<void(int64_t index, int thread)>& fn) = 0;
};

// Bytes of scratch that Run needs for this launch with this many threads. For FLASH independent of
// lengths; for NAIVE and ONLINE O(q_len * kv_len) as the algorithm has it.
int64_t WorkspaceBytes(const Launch& launch, int thread_count);

// The tile that FLASH walks.
TileShape FlashTile(const Launch& launch);

// Runs the launch and returns when the outputs are written. workspace: WorkspaceBytes() bytes, 64-byte
// aligned. InvalidArgument as CheckLaunch; workspace too small is InvalidArgument too. Thread-safe for
// disjoint outputs and workspaces.
absl::Status Run(const Launch& launch, void* workspace, int64_t workspace_bytes, Parallel& parallel);

// The instruction set in use, such as "AVX-512"; chosen at run time.
std::string InstructionSet();

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_CPU_ATTENTION_H_
