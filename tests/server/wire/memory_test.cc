// What the decoder takes from the heap for a hostile request.
#include <gtest/gtest.h>

#include <string>

#include "server/wire/decoder.h"
#include "tests/server/wire/allocation_meter.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

TEST(Memory, NothingOfATensorsSizeIsTakenBeforeItIsChecked) {
  v1::AttendRequest request = SmallRequest();
  request.mutable_v_data()->resize(32 << 20);
  // A million lengths, rows and sizes of a shape, besides.
  v1::AttendRequest more;
  for (int i = 0; i < 1000000; ++i) {
    more.add_q_lengths(1);
    more.add_weight_rows(1);
    more.mutable_q()->add_shape(1);
  }
  grpc::ByteBuffer buffer = OneSlice(request.SerializeAsString() + more.SerializeAsString());
  ResetLargestAllocation();
  AttendDecoder decoder(&buffer, {});
  const absl::Status status = decoder.ReadSpecs();
  const size_t largest = LargestAllocation();
  EXPECT_FALSE(status.ok());
  EXPECT_GT(largest, 0u) << "the meter works";
  EXPECT_LE(largest, 2u * 65536 * sizeof(int64_t)) << "lists are kept up to their limits, tensors not at all";
}

TEST(Memory, AValidRequestTakesNoTensorMemoryOfItsOwn) {
  v1::AttendRequest request = SmallRequest();
  for (v1::TensorSpec* spec : {request.mutable_q(), request.mutable_k(), request.mutable_v()})
    spec->set_shape(2, 65536);
  request.mutable_q_data()->resize(2 * 4 * 65536 * 16);
  request.mutable_k_data()->resize(2 * 2 * 65536 * 16);
  request.mutable_v_data()->resize(2 * 2 * 65536 * 16);
  grpc::ByteBuffer buffer = OneSlice(request.SerializeAsString());
  TestPool pool;
  ResetLargestAllocation();
  AttendDecoder decoder(&buffer, {});
  ASSERT_TRUE(decoder.ReadSpecs().ok());
  const HostBlock block = *pool.Allocate(decoder.input_bytes());
  CallTensors tensors;
  ASSERT_TRUE(decoder.ReadTensors(block, &tensors).ok());
  EXPECT_LE(LargestAllocation(), 4096u) << "bytes go from the slices to the block and nowhere else";
}

}  // namespace
}  // namespace attend::server
