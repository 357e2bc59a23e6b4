// Safetensors files: an 8-byte little-endian header size, a JSON header that names tensors (dtype, shape,
// where their bytes lie), the bytes. Read strictly: what the format forbids is an error, because a tensor
// read from the wrong place is a wrong answer.
#ifndef ATTEND_CLIENT_CLI_SAFETENSORS_H_
#define ATTEND_CLIENT_CLI_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attend/types.h"

namespace attend::cli {

// The tensors of one file. Movable; views live as long as it does.
class Safetensors {
 public:
  // The format's own bound of a header.
  static constexpr uint64_t kHeaderBytesMax = 100'000'000;

  // NotFound or Internal where the file cannot be read; else as Parse, the path in the message.
  static absl::StatusOr<Safetensors> Read(const std::string& path);
  // InvalidArgument unless `bytes` is a whole safetensors file of F32, F16, BF16 and BOOL tensors that cover
  // the data exactly: no overlap, no gap, nothing outside.
  static absl::StatusOr<Safetensors> Parse(std::string bytes);

  // Null where the file has no such tensor.
  const TensorView* Find(absl::string_view name) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  // On the heap, so that a move leaves the views right.
  std::unique_ptr<const std::string> bytes_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// OK where WriteSafetensors can create its file now; else FailedPrecondition with the system's reason.
absl::Status CheckCreatable(const std::string& path);

// Writes the tensors, in this order, to a file next to `path` that then takes its place: a reader never sees
// half a file. FailedPrecondition as above where it cannot be written.
absl::Status WriteSafetensors(const std::string& path,
                              const std::vector<std::pair<std::string, TensorView>>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_SAFETENSORS_H_
