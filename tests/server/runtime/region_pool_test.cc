#include "server/memory/region_pool.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error.h"

namespace attend::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Counts what is given back; may refuse to.
class FakeRegion : public HostRegion {
 public:
  FakeRegion(int64_t size, bool releases = true) : bytes_(size + 4096), size_(size), releases_(releases) {}
  std::byte* data() const override {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return reinterpret_cast<std::byte*>((at + 4095) / 4096 * 4096);
  }
  int64_t size() const override { return size_; }
  bool Release(int64_t offset, int64_t bytes) override {
    EXPECT_EQ(offset % 4096, 0);
    EXPECT_LE(offset + bytes, size_);
    if (!releases_) return false;
    memset(data() + offset, 0, bytes);
    released += bytes;
    return true;
  }
  int64_t released = 0;

 private:
  mutable std::vector<std::byte> bytes_;
  const int64_t size_;
  const bool releases_;
};

std::unique_ptr<HostPool> MakePool(int64_t size) { return CreateRegionPool(*MapHostRegion(size)); }

HostBlock Take(HostPool& pool, int64_t size) {
  absl::StatusOr<HostBlock> block = pool.Allocate(size);
  EXPECT_TRUE(block.ok()) << block.status();
  return block.ok() ? *std::move(block) : HostBlock();
}

TEST(RegionPool, AccountsInMultiplesOf256AndKeepsThePeak) {
  const auto pool = MakePool(kMiB);
  EXPECT_EQ(pool->capacity(), kMiB);
  {
    const HostBlock a = Take(*pool, 1);
    const HostBlock b = Take(*pool, 257);
    EXPECT_EQ(a.size(), 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
    EXPECT_EQ(pool->used_bytes(), 256 + 512);
  }
  EXPECT_EQ(pool->used_bytes(), 0);
  EXPECT_EQ(pool->peak_bytes(), 256 + 512);
}

TEST(RegionPool, RefusesForNowAndForGood) {
  const auto pool = MakePool(kMiB);
  const absl::Status never = pool->Allocate(kMiB + 1).status();
  EXPECT_EQ(never.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(never.message()), testing::HasSubstr(std::to_string(kMiB)));
  const HostBlock all = Take(*pool, kMiB);
  const absl::Status now = pool->Allocate(1).status();
  EXPECT_EQ(now.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetReason(now), "POOL_FULL");
  EXPECT_TRUE(GetRetryDelay(now).has_value());
  EXPECT_EQ(pool->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RegionPool, NothingNeedsNoRoom) {
  const auto pool = MakePool(4096);
  const HostBlock all = Take(*pool, 4096);
  const HostBlock empty = Take(*pool, 0);
  EXPECT_FALSE(empty);
  EXPECT_EQ(pool->used_bytes(), 4096);
}

TEST(RegionPool, TakesTheSmallestRangeThatFits) {
  const auto pool = MakePool(1 << 16);
  // Holes of 1024 and 512 bytes between blocks that stay.
  HostBlock hole1 = Take(*pool, 1024);
  const HostBlock wall1 = Take(*pool, 256);
  HostBlock hole2 = Take(*pool, 512);
  const HostBlock wall2 = Take(*pool, 256);
  std::byte* const second = hole2.data();
  hole1 = HostBlock();
  hole2 = HostBlock();
  EXPECT_EQ(Take(*pool, 400).data(), second);
}

TEST(RegionPool, LargeBlocksStayClearOfSmallOnes) {
  const auto pool = MakePool(kMiB);
  const HostBlock large = Take(*pool, kMiB / 2);
  const HostBlock small = Take(*pool, 256);
  EXPECT_GT(large.data(), small.data());
}

TEST(RegionPool, NeighboursJoinWhateverTheOrderOfFreeing) {
  const auto pool = MakePool(3 * 256);
  std::vector<int> order = {0, 1, 2};
  do {
    std::vector<HostBlock> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(Take(*pool, 256));
    for (const int i : order) blocks[i] = HostBlock();
    EXPECT_TRUE(pool->Allocate(3 * 256).ok());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RegionPool, KeepsResidentMemoryBelowItsBound) {
  auto owned = std::make_unique<FakeRegion>(16 * kMiB);
  FakeRegion* const region = owned.get();
  RegionPoolOptions options;
  options.resident_bytes_max = 4 * kMiB;
  const auto pool = CreateRegionPool(std::move(owned), options);
  { const HostBlock block = Take(*pool, 4 * kMiB); }
  EXPECT_EQ(region->released, 0);
  { const HostBlock block = Take(*pool, 16 * kMiB); }
  EXPECT_EQ(region->released, 12 * kMiB);
}

TEST(RegionPool, WorksWhereMemoryCannotBeGivenBack) {
  RegionPoolOptions options;
  options.resident_bytes_max = 0;
  const auto pool = CreateRegionPool(std::make_unique<FakeRegion>(4 * kMiB, false), options);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool->Allocate(4 * kMiB).ok());
}

TEST(RegionPool, RefusesARegionThatTheSystemCannotGive) {
  EXPECT_EQ(MapHostRegion(int64_t{1} << 62).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(MapHostRegion(0).status().code(), absl::StatusCode::kInvalidArgument);
}

// Threads take, fill, check and free blocks of all sizes; no two ever overlap, and all comes back.
TEST(RegionPool, BlocksNeverOverlapUnderThreads) {
  constexpr int kThreads = 4;
  const auto pool = MakePool(4 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      std::vector<HostBlock> held;
      for (int i = 0; i < 3000; ++i) {
        const int64_t size = 1 + random() % (random() % 8 == 0 ? 200000 : 3000);
        absl::StatusOr<HostBlock> block = pool->Allocate(size);
        if (block.ok()) {
          memset(block->data(), t + 1, size);
          held.push_back(*std::move(block));
        }
        if (held.size() > 20 || (!block.ok() && !held.empty())) {
          std::swap(held[random() % held.size()], held.back());
          const HostBlock& last = held.back();
          const std::byte own{static_cast<unsigned char>(t + 1)};
          ASSERT_TRUE(
              std::all_of(last.data(), last.data() + last.size(), [own](std::byte b) { return b == own; }));
          held.pop_back();
        }
        ASSERT_LE(pool->used_bytes(), pool->capacity());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool->used_bytes(), 0);
  EXPECT_TRUE(pool->Allocate(4 * kMiB).ok());  // one range again
}

}  // namespace
}  // namespace attend::server
