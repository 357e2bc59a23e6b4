// The fields of an AttendRequest as they came over the wire, before anything is known to be right: small
// fields by value, tensor data by where it lies in the message.
#ifndef ATTEND_SERVER_WIRE_REQUEST_FIELDS_H_
#define ATTEND_SERVER_WIRE_REQUEST_FIELDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "server/wire/limits.h"
#include "server/wire/violations.h"

namespace attend::server {

// The tensors of a request, in the order of their data fields.
enum class TensorId : uint8_t { kQ, kK, kV, kBias, kMask, kAlibiSlopes, kSinks };
inline constexpr size_t kTensorCount = 7;
inline constexpr int64_t kRankMax = 4;

absl::string_view SpecName(TensorId id);  // "q"
absl::string_view DataName(TensorId id);  // "q_data"

struct TensorField {
  bool has_spec = false;
  int32_t dtype = 0;                         // value of attend.v1.DataType, known or not
  int64_t rank = 0;                          // sizes sent; shape keeps the first kRankMax
  std::array<int64_t, kRankMax> shape = {};  // as sent: any int64
  int64_t data_offset = 0;                   // of the data's first byte in the message
  int64_t data_bytes = 0;                    // 0: none sent, or sent empty, which protobuf makes the same
};

// A repeated field: the first max values, and how many there were.
struct BoundedList {
  std::vector<int64_t> values;
  int64_t count = 0;
  void Add(int64_t value, int64_t max) {
    if (count++ < max) values.push_back(value);
  }
};

struct RequestFields {
  std::array<TensorField, kTensorCount> tensors;
  int32_t layout = 0, kernel = 0, causal = 0;  // enum values, known or not
  std::optional<float> scale, softcap;
  std::optional<int64_t> window_left, window_right;
  BoundedList q_lengths, kv_lengths;  // the first limits.batch_max are kept
  BoundedList weight_rows;            // the first limits.weight_rows_max are kept
  bool return_lse = false, return_weights = false;

  const TensorField& tensor(TensorId id) const { return tensors[static_cast<size_t>(id)]; }
  TensorField& tensor(TensorId id) { return tensors[static_cast<size_t>(id)]; }
};

// Reads a message of message_bytes bytes (at most 2^31 - 1) from stream, in any field order and any
// encoding that protobuf accepts, and means what protobuf means by it: the last of a field repeated wins,
// TensorSpecs given in parts are merged, lists are packed or not. Passes over tensor bytes without
// reading them. Unknown fields are violations, and so is what is not protobuf at all. False when the
// message could not be read to its end: fields are then of no use.
bool ReadRequestFields(google::protobuf::io::ZeroCopyInputStream* stream, int64_t message_bytes,
                       const DecodeLimits& limits, RequestFields* fields, ViolationList* violations);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_REQUEST_FIELDS_H_
