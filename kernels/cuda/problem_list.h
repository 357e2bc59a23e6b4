// A launch's problems as a kernel sees them: each block finds its problem by its own index. A few problems
// travel in the kernel's parameters; longer lists are copied through the launch's workspace, on the
// stream, without a stall.
#ifndef ATTEND_KERNELS_CUDA_PROBLEM_LIST_H_
#define ATTEND_KERNELS_CUDA_PROBLEM_LIST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/cuda_attention.h"

namespace attend::cuda {

inline constexpr int64_t kWorkspaceAlignment = 256;
constexpr int64_t AlignWorkspace(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

struct ProblemItem {
  Problem problem;
  int64_t block_begin = 0;  // the first of this problem's blocks
  // What a kernel makes of them: where the problem's part of the workspace begins, say.
  int64_t offset = 0;
  int64_t row_offset = 0;
  int64_t tile_offset = 0;
};

struct ProblemList {
  // Parameters of more than 4 KB slow every launch down.
  static constexpr int kInlineMax = 10;
  const ProblemItem* items = nullptr;  // device memory; null: inline_items
  int32_t count = 0;
  ProblemItem inline_items[kInlineMax];

#ifdef __CUDACC__
  // The problem that a block belongs to. Problems without blocks are passed over.
  __device__ const ProblemItem& Find(int64_t block) const {
    const ProblemItem* list = items != nullptr ? items : inline_items;
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (list[middle].block_begin <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return list[low];
  }
#endif
};
static_assert(std::is_trivially_copyable_v<ProblemList> && sizeof(ProblemList) <= 4000);

// Bytes of device and of host workspace for a list of so many problems.
int64_t ListBytes(size_t problems);

// Numbers of blocks pass 2^31 - 1 only for tensors that no GPU holds; a launch checks all the same.
inline constexpr int64_t kBlocksMax = 2147483647;

// Fills in the list, its items described by fill(problem index, item), which sets item.offset and returns
// the problem's blocks, and enqueues its copy. device, host: ListBytes() each. total_blocks: their sum,
// InvalidArgument beyond kBlocksMax.
absl::Status MakeList(std::span<const Problem> problems,
                      absl::FunctionRef<int64_t(size_t index, ProblemItem& item)> fill, void* device,
                      void* host, Stream stream, ProblemList* list, int64_t* total_blocks);

// Hands out a workspace piece by piece.
class Carver {
 public:
  explicit Carver(const Workspace& workspace)
      : device_(static_cast<char*>(workspace.device)), host_(static_cast<char*>(workspace.host)) {}
  void* Device(int64_t bytes) { return Take(device_, device_bytes_, bytes); }
  void* Host(int64_t bytes) { return Take(host_, host_bytes_, bytes); }
  // So far, padding included: run with an empty workspace, what a plan needs.
  WorkspaceNeed need() const { return {device_bytes_, host_bytes_}; }

 private:
  static void* Take(char* base, int64_t& used, int64_t bytes) {
    char* piece = base == nullptr ? nullptr : base + used;
    used += AlignWorkspace(bytes);
    return piece;
  }
  char* device_;
  char* host_;
  int64_t device_bytes_ = 0;
  int64_t host_bytes_ = 0;
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_PROBLEM_LIST_H_
