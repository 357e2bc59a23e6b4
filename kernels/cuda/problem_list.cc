#include "kernels/cuda/problem_list.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/list_copy.h"

namespace attend::cuda {

int64_t ListBytes(size_t problems) {
  if (problems <= ProblemList::kInlineMax) return 0;
  return static_cast<int64_t>(problems * sizeof(ProblemItem));
}

absl::Status MakeList(std::span<const Problem> problems,
                      absl::FunctionRef<int64_t(size_t index, ProblemItem& item)> fill, void* device,
                      void* host, Stream stream, ProblemList* list, int64_t* total_blocks) {
  const int64_t bytes = ListBytes(problems.size());
  ProblemItem* items = bytes == 0 ? list->inline_items : static_cast<ProblemItem*>(host);
  int64_t blocks = 0;
  for (size_t i = 0; i < problems.size(); ++i) {
    items[i].problem = problems[i];
    items[i].block_begin = blocks;
    blocks += fill(i, items[i]);
  }
  if (blocks > kBlocksMax) {
    return absl::InvalidArgumentError(absl::StrCat("the launch needs ", blocks, " thread blocks; at most ",
                                                   kBlocksMax, " run in one launch"));
  }
  list->count = static_cast<int32_t>(problems.size());
  list->items = nullptr;
  if (bytes > 0) {
    list->items = static_cast<const ProblemItem*>(device);
    if (auto s = EnqueueListCopy(device, host, bytes, stream); !s.ok()) return s;
  }
  *total_blocks = blocks;
  return absl::OkStatus();
}

}  // namespace attend::cuda
