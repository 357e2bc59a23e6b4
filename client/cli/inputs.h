// Requests with tensors of their own: random, or from a safetensors file.
#ifndef ATTEND_CLIENT_CLI_INPUTS_H_
#define ATTEND_CLIENT_CLI_INPUTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/types.h"
#include "client/cli/safetensors.h"

namespace attend::cli {

// Sizes of a dense self-attention problem.
struct Sizes {
  int64_t batch = 1, heads = 1, length = 1, head_dim = 64;
  int64_t kv_heads = 0;  // 0: as many as heads
  Shape q() const { return {batch, heads, length, head_dim}; }
  Shape kv() const { return {batch, kv_heads == 0 ? heads : kv_heads, length, head_dim}; }
};

// A request and the memory of its tensors. Movable.
struct Inputs {
  Request request;
  std::vector<Tensor> owned;
  std::unique_ptr<Safetensors> file;  // that the request's views lie in, or null
};

// q, k, v of unit-normal numbers. The same seed gives the same tensors on every machine with the same
// standard library.
Inputs RandomInputs(const Sizes& sizes, DataType dtype, uint64_t seed);

// The tensors q, k, v and, where present, bias, mask, alibi_slopes and sinks of a file.
absl::StatusOr<Inputs> ReadInputs(const std::string& path);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_INPUTS_H_
