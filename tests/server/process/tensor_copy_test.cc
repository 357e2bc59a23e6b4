#include "server/process/tensor_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/server/wire/wire_testing.h"

namespace attend::server {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// A request's message cut into pieces, and the block that they are copied to.
class TensorCopyTest : public testing::Test {
 protected:
  void Cut(int64_t piece_bytes) {
    message_ = OneSlice(request_.SerializeAsString());
    decoder_ = std::make_unique<AttendDecoder>(&message_, DecodeLimits());
    ASSERT_TRUE(decoder_->ReadSpecs().ok());
    block_ = *pool_.Allocate(decoder_->input_bytes());
    std::memset(block_.data(), kUnread, static_cast<size_t>(block_.size()));
    auto pieces = decoder_->CutTensors(block_, &tensors_, piece_bytes);
    ASSERT_TRUE(pieces.ok());
    pieces_ = *std::move(pieces);
  }

  static constexpr int kUnread = 0xee;
  const v1::AttendRequest request_ = SmallRequest();
  TestPool pool_;
  grpc::ByteBuffer message_;
  std::unique_ptr<AttendDecoder> decoder_;
  HostBlock block_;
  CallTensors tensors_;
  std::vector<TensorPiece> pieces_;
};

// Remembers the bytes of each tensor as they are when it is told of it.
struct Recorder final : Staging {
  void CopyIn(std::span<const std::byte> tensor) override {
    absl::MutexLock lock(&mutex);
    told.emplace_back(reinterpret_cast<const char*>(tensor.data()), tensor.size());
    if (on_told) on_told();
  }
  absl::Mutex mutex;
  std::vector<std::string> told;
  std::function<void()> on_told;
};

TEST_F(TensorCopyTest, TellsOfATensorBeforeTheNextOneIsRead) {
  Cut(100);
  Recorder recorder;
  std::vector<bool> v_unread;
  recorder.on_told = [&] { v_unread.push_back(*static_cast<const uint8_t*>(tensors_.v) == kUnread); };
  ASSERT_NE(static_cast<uint8_t>(request_.v_data()[0]), kUnread);
  TensorCopy copy(std::move(pieces_), &recorder);
  EXPECT_TRUE(copy.Help());
  EXPECT_THAT(recorder.told, ElementsAre(request_.q_data(), request_.k_data(), request_.v_data()));
  EXPECT_THAT(v_unread, ElementsAre(true, true, false));
  EXPECT_FALSE(copy.Help()) << "who comes too late finds nothing";
}

TEST_F(TensorCopyTest, ThreadsTellOfEachTensorOnceAndOneOfThemOfTheEnd) {
  for (int round = 0; round < 50; ++round) {
    Cut(8);
    Recorder recorder;
    TensorCopy copy(std::move(pieces_), &recorder);
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        if (!copy.Help()) return;
        ++ended;
        absl::MutexLock lock(&recorder.mutex);
        EXPECT_EQ(recorder.told.size(), 3u);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended, 1);
    EXPECT_THAT(recorder.told, UnorderedElementsAre(request_.q_data(), request_.k_data(), request_.v_data()));
  }
}

TEST_F(TensorCopyTest, CopiesWhereNothingIsStagedToo) {
  Cut(100);
  TensorCopy copy(std::move(pieces_), nullptr);
  EXPECT_TRUE(copy.Help());
  EXPECT_EQ(std::memcmp(tensors_.v, request_.v_data().data(), request_.v_data().size()), 0);
}

}  // namespace
}  // namespace attend::server
