// Requests for tests of the wire: valid ones at random, the many ways to serialise one, and what protobuf
// itself makes of a message, to compare the decoder with.
#ifndef ATTEND_TESTS_SERVER_WIRE_WIRE_TESTING_H_
#define ATTEND_TESTS_SERVER_WIRE_WIRE_TESTING_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "attend/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/call.h"
#include "server/memory/host_pool.h"
#include "server/wire/limits.h"
#include "server/wire/request_fields.h"

namespace attend::server {

using Rng = std::mt19937_64;

// Memory from the heap, without a budget; counts what is out.
class TestPool final : public HostPool {
 public:
  absl::StatusOr<HostBlock> Allocate(int64_t size) override;
  int64_t capacity() const override { return int64_t{1} << 40; }
  int64_t used_bytes() const override { return used_bytes_; }
  int64_t peak_bytes() const override { return peak_bytes_; }

 private:
  void Free(std::byte* data, int64_t size) override;
  int64_t used_bytes_ = 0, peak_bytes_ = 0;
};

// A valid request: q, k, v [2,4,3,8] (k, v of 2 heads, length 5) in fp16, BHLD, with data.
v1::AttendRequest SmallRequest();
// Any valid request, of few kilobytes: every layout, dtype and option.
v1::AttendRequest RandomRequest(Rng& rng);

// The same meaning in another form: fields in any order, specs and lists in parts, packed or not, fields
// that a later one overrules.
std::string ShuffledSerialize(const v1::AttendRequest& request, Rng& rng);

// The message in slices that end anywhere; some are empty.
grpc::ByteBuffer CutIntoSlices(absl::string_view message, Rng& rng);
// The message in one slice.
grpc::ByteBuffer OneSlice(absl::string_view message);
std::string Flatten(const grpc::ByteBuffer& buffer);

// The oracle: what protobuf's own parser made of the message, as the decoder's reader should have it
// (data_offset left 0), and whether it met a field that it did not know.
RequestFields FieldsOf(const v1::AttendRequest& request, const DecodeLimits& limits);
bool HasUnknownFields(const v1::AttendRequest& request);

// All that a call says, to compare calls by.
std::string Describe(const Call& call);
// All that fields say but data_offset.
std::string Describe(const RequestFields& fields);

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_WIRE_WIRE_TESTING_H_
