#include "server/process/tensor_copy.h"

#include <span>

namespace attend::server {

bool TensorCopy::Help() {
  for (size_t i = next_++; i < pieces_.size(); i = next_++) {
    const std::span<const std::byte> whole = pieces_[i].Copy();
    if (staging_ != nullptr && !whole.empty()) staging_->CopyIn(whole);
    if (++copied_ == pieces_.size()) return true;
  }
  return false;
}

}  // namespace attend::server
