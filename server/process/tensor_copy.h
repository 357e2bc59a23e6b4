// The copy of a large request's tensors off the wire, by as many threads as have time for it.
#ifndef ATTEND_SERVER_PROCESS_TENSOR_COPY_H_
#define ATTEND_SERVER_PROCESS_TENSOR_COPY_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "server/device/device.h"
#include "server/wire/decoder.h"

namespace attend::server {

class TensorCopy {
 public:
  // One piece or more. staging may be null; until every piece is copied it has to be there.
  TensorCopy(std::vector<TensorPiece> pieces, Staging* staging)
      : pieces_(std::move(pieces)), staging_(staging) {}

  // Copies pieces that nobody has taken until there are none, and tells staging of each tensor as soon as it
  // is whole. True for one caller: every piece is copied, and staging told. May be called by any number of
  // threads, and after that as well.
  bool Help();

 private:
  std::vector<TensorPiece> pieces_;
  Staging* const staging_;
  std::atomic<size_t> next_{0};    // piece that nobody has taken
  std::atomic<size_t> copied_{0};  // pieces that are in the block
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_TENSOR_COPY_H_
