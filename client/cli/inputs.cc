#include "client/cli/inputs.h"

#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/numbers.h"

namespace attend::cli {

Inputs RandomInputs(const Sizes& sizes, DataType dtype, uint64_t seed) {
  Inputs inputs;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const Shape& shape : {sizes.q(), sizes.kv(), sizes.kv()}) {
    const int64_t elements = Elements(shape);
    Tensor tensor(dtype, shape, elements * SizeOf(dtype));
    for (int64_t i = 0; i < elements; ++i)
      FromDouble(normal(random), dtype, tensor.mutable_bytes().data(), i);
    inputs.owned.push_back(std::move(tensor));
  }
  inputs.request.q = inputs.owned[0].view();
  inputs.request.k = inputs.owned[1].view();
  inputs.request.v = inputs.owned[2].view();
  return inputs;
}

absl::StatusOr<Inputs> ReadInputs(const std::string& path) {
  absl::StatusOr<Safetensors> file = Safetensors::Read(path);
  if (!file.ok()) return file.status();
  Inputs inputs;
  inputs.file = std::make_unique<Safetensors>(*std::move(file));
  for (const auto& [name, view] : {std::pair("q", &inputs.request.q), std::pair("k", &inputs.request.k),
                                   std::pair("v", &inputs.request.v)}) {
    const TensorView* tensor = inputs.file->Find(name);
    if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": has no tensor ", name));
    *view = *tensor;
  }
  for (const auto& [name, view] :
       {std::pair("bias", &inputs.request.bias), std::pair("mask", &inputs.request.mask),
        std::pair("alibi_slopes", &inputs.request.alibi_slopes), std::pair("sinks", &inputs.request.sinks)}) {
    if (const TensorView* tensor = inputs.file->Find(name)) *view = *tensor;
  }
  return inputs;
}

}  // namespace attend::cli
