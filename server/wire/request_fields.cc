#include "server/wire/request_fields.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "attend/v1/attention.pb.h"
#include "google/protobuf/io/coded_stream.h"

namespace attend::server {
namespace {

using google::protobuf::io::CodedInputStream;
using Request = v1::AttendRequest;
using Spec = v1::TensorSpec;

constexpr std::array<absl::string_view, kTensorCount> kSpecNames = {
    "q", "k", "v", "bias", "mask", "alibi_slopes", "sinks"};
constexpr std::array<absl::string_view, kTensorCount> kDataNames = {
    "q_data", "k_data", "v_data", "bias_data", "mask_data", "alibi_slopes_data", "sinks_data"};
static_assert(Request::kSinksDataFieldNumber - Request::kQDataFieldNumber == kTensorCount - 1);

// How a field's value is encoded; the wire types of protobuf. Groups (3, 4) are no part of proto3.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Longest encodings that protobuf's generated parsers accept.
constexpr int kTagBytesMax = 5;
constexpr int kSizeBytesMax = 5;
constexpr int kVarintBytesMax = 10;

class Reader {
 public:
  Reader(google::protobuf::io::ZeroCopyInputStream* stream, const DecodeLimits& limits, RequestFields* fields,
         ViolationList* violations)
      : in_(stream), limits_(limits), fields_(*fields), violations_(*violations) {}

  bool ReadMessage(int64_t bytes) {
    in_.PushLimit(static_cast<int>(bytes));
    while (in_.BytesUntilLimit() > 0) {
      uint32_t tag = 0;
      if (!ReadTag(kRequestPath, &tag) || !ReadField(tag >> 3, tag & 7)) return false;
    }
    return true;
  }

 private:
  bool Malformed(absl::string_view field, absl::string_view what) {
    violations_.Add(field, what, " at byte ", in_.CurrentPosition(), ": not a well-formed protobuf message");
    return false;
  }

  bool ReadVarint(absl::string_view field, int bytes_max, uint64_t* value) {
    const int start = in_.CurrentPosition();
    if (!in_.ReadVarint64(value) || in_.CurrentPosition() - start > bytes_max) {
      return Malformed(field, "bad or cut varint");
    }
    return true;
  }

  bool ReadTag(absl::string_view message, uint32_t* tag) {
    uint64_t value = 0;
    if (!ReadVarint(message, kTagBytesMax, &value)) return false;
    *tag = static_cast<uint32_t>(value);
    return (*tag >> 3) != 0 || Malformed(message, "field number 0");
  }

  // The size of what follows, which must lie inside the enclosing message.
  bool ReadSize(absl::string_view field, int* size) {
    uint64_t value = 0;
    if (!ReadVarint(field, kSizeBytesMax, &value)) return false;
    if (value > static_cast<uint64_t>(in_.BytesUntilLimit())) {
      return Malformed(field, absl::StrCat("a size of ", value, " that passes the message's end"));
    }
    *size = static_cast<int>(value);
    return true;
  }

  bool ReadField(uint32_t number, uint32_t wire_type) {
    if (number >= Request::kQDataFieldNumber && number <= Request::kSinksDataFieldNumber) {
      if (wire_type != kBytes) return SkipUnknown(kRequestPath, number, wire_type);
      return ReadData(static_cast<TensorId>(number - Request::kQDataFieldNumber));
    }
    switch (number) {
      case Request::kQFieldNumber:
      case Request::kKFieldNumber:
      case Request::kVFieldNumber:
        if (wire_type != kBytes) break;
        return ReadSpec(static_cast<TensorId>(number - Request::kQFieldNumber));
      case Request::kBiasFieldNumber:
      case Request::kMaskFieldNumber:
      case Request::kAlibiSlopesFieldNumber:
      case Request::kSinksFieldNumber:
        if (wire_type != kBytes) break;
        return ReadSpec(static_cast<TensorId>(static_cast<uint32_t>(TensorId::kBias) + number -
                                              Request::kBiasFieldNumber));
      case Request::kQLengthsFieldNumber:
        return ReadList("q_lengths", number, wire_type, limits_.batch_max, &fields_.q_lengths);
      case Request::kKvLengthsFieldNumber:
        return ReadList("kv_lengths", number, wire_type, limits_.batch_max, &fields_.kv_lengths);
      case Request::kWeightRowsFieldNumber:
        return ReadList("weight_rows", number, wire_type, limits_.weight_rows_max, &fields_.weight_rows);
      case Request::kScaleFieldNumber:
        if (wire_type != kFixed32) break;
        return ReadFloat("scale", &fields_.scale);
      case Request::kSoftcapFieldNumber:
        if (wire_type != kFixed32) break;
        return ReadFloat("softcap", &fields_.softcap);
      default:
        if (wire_type != kVarint) break;
        return ReadScalar(number);
    }
    return SkipUnknown(kRequestPath, number, wire_type);
  }

  // Fields that are one varint. Values are narrowed as protobuf narrows them.
  bool ReadScalar(uint32_t number) {
    uint64_t value = 0;
    if (!ReadVarint(kRequestPath, kVarintBytesMax, &value)) return false;
    switch (number) {
      case Request::kLayoutFieldNumber:
        fields_.layout = static_cast<int32_t>(value);
        return true;
      case Request::kKernelFieldNumber:
        fields_.kernel = static_cast<int32_t>(value);
        return true;
      case Request::kCausalFieldNumber:
        fields_.causal = static_cast<int32_t>(value);
        return true;
      case Request::kWindowLeftFieldNumber:
        fields_.window_left = static_cast<int64_t>(value);
        return true;
      case Request::kWindowRightFieldNumber:
        fields_.window_right = static_cast<int64_t>(value);
        return true;
      case Request::kReturnLseFieldNumber:
        fields_.return_lse = value != 0;
        return true;
      case Request::kReturnWeightsFieldNumber:
        fields_.return_weights = value != 0;
        return true;
      default:
        AddUnknown(kRequestPath, number, kVarint);
        return true;
    }
  }

  bool ReadFloat(absl::string_view field, std::optional<float>* value) {
    uint32_t bits = 0;
    if (!in_.ReadLittleEndian32(&bits)) return Malformed(field, "cut value");
    *value = std::bit_cast<float>(bits);
    return true;
  }

  bool ReadData(TensorId id) {
    int size = 0;
    if (!ReadSize(DataName(id), &size)) return false;
    TensorField& tensor = fields_.tensor(id);
    tensor.data_offset = in_.CurrentPosition();
    tensor.data_bytes = size;
    return in_.Skip(size) || Malformed(DataName(id), "cut data");
  }

  bool ReadSpec(TensorId id) {
    int size = 0;
    if (!ReadSize(SpecName(id), &size)) return false;
    TensorField& tensor = fields_.tensor(id);
    tensor.has_spec = true;
    const CodedInputStream::Limit outer = in_.PushLimit(size);
    while (in_.BytesUntilLimit() > 0) {
      uint32_t tag = 0;
      if (!ReadTag(SpecName(id), &tag) || !ReadSpecField(id, tag >> 3, tag & 7)) return false;
    }
    in_.PopLimit(outer);
    return true;
  }

  bool ReadSpecField(TensorId id, uint32_t number, uint32_t wire_type) {
    TensorField& tensor = fields_.tensor(id);
    if (number == Spec::kDtypeFieldNumber && wire_type == kVarint) {
      uint64_t value = 0;
      if (!ReadVarint(SpecName(id), kVarintBytesMax, &value)) return false;
      tensor.dtype = static_cast<int32_t>(value);
      return true;
    }
    if (number == Spec::kShapeFieldNumber && (wire_type == kVarint || wire_type == kBytes)) {
      return ReadInt64s(SpecName(id), wire_type, [&tensor](int64_t value) {
        if (tensor.rank < kRankMax) tensor.shape[static_cast<size_t>(tensor.rank)] = value;
        ++tensor.rank;
      });
    }
    return SkipUnknown(SpecName(id), number, wire_type);
  }

  bool ReadList(absl::string_view field, uint32_t number, uint32_t wire_type, int64_t max,
                BoundedList* list) {
    if (wire_type != kVarint && wire_type != kBytes) return SkipUnknown(kRequestPath, number, wire_type);
    return ReadInt64s(field, wire_type, [=](int64_t value) { list->Add(value, max); });
  }

  // A repeated int64: one value, or a packed run of them.
  template <typename Add>
  bool ReadInt64s(absl::string_view field, uint32_t wire_type, const Add& add) {
    uint64_t value = 0;
    if (wire_type == kVarint) {
      if (!ReadVarint(field, kVarintBytesMax, &value)) return false;
      add(static_cast<int64_t>(value));
      return true;
    }
    int size = 0;
    if (!ReadSize(field, &size)) return false;
    const CodedInputStream::Limit outer = in_.PushLimit(size);
    while (in_.BytesUntilLimit() > 0) {
      if (!ReadVarint(field, kVarintBytesMax, &value)) return false;
      add(static_cast<int64_t>(value));
    }
    in_.PopLimit(outer);
    return true;
  }

  void AddUnknown(absl::string_view message, uint32_t number, uint32_t wire_type) {
    violations_.Add(message, "field number ", number, " of wire type ", wire_type,
                    " is not known to this server (a newer API?)");
  }

  bool SkipUnknown(absl::string_view message, uint32_t number, uint32_t wire_type) {
    AddUnknown(message, number, wire_type);
    uint64_t value = 0;
    int size = 0;
    switch (wire_type) {
      case kVarint:
        return ReadVarint(message, kVarintBytesMax, &value);
      case kFixed64:
        return in_.Skip(8) || Malformed(message, "cut value");
      case kBytes:
        return ReadSize(message, &size) && in_.Skip(size);
      case kFixed32:
        return in_.Skip(4) || Malformed(message, "cut value");
      default:
        return Malformed(message, "a group, or no wire type at all,");
    }
  }

  CodedInputStream in_;
  const DecodeLimits& limits_;
  RequestFields& fields_;
  ViolationList& violations_;
};

}  // namespace

absl::string_view SpecName(TensorId id) { return kSpecNames[static_cast<size_t>(id)]; }
absl::string_view DataName(TensorId id) { return kDataNames[static_cast<size_t>(id)]; }

bool ReadRequestFields(google::protobuf::io::ZeroCopyInputStream* stream, int64_t message_bytes,
                       const DecodeLimits& limits, RequestFields* fields, ViolationList* violations) {
  return Reader(stream, limits, fields, violations).ReadMessage(message_bytes);
}

}  // namespace attend::server
