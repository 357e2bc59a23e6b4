// The merge on the GPU against the merge on the host: random parts, empty ones among them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_merge.h"
#include "tests/kernels/host_float.h"

namespace attend::cuda {
namespace {

// Device memory with the bytes of a host vector.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : bytes_(values.size() * sizeof(T)) {
    EXPECT_EQ(cudaMalloc(&data_, bytes_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class CudaMergeTest : public ::testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
      GTEST_SKIP() << "ATTEND-SKIPPED: no GPU: " << cudaGetErrorString(error);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaMergeTest,
                         ::testing::Values(DataType::kFp32, DataType::kFp16, DataType::kBf16),
                         [](const auto& info) { return std::string(Name(info.param)); });

constexpr int64_t kRows = 77;
constexpr int32_t kDim = 72;

void MergeLikeTheHost(DataType dtype, int parts, bool with_sinks) {
  std::random_device device;
  const unsigned seed = device();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> outs(parts), lses(parts);
  std::vector<std::unique_ptr<OnDevice<float>>> keep;
  std::vector<PartialState> on_host, on_device;
  for (int i = 0; i < parts; ++i) {
    for (int64_t r = 0; r < kRows; ++r) {
      // Row 0 is empty everywhere; elsewhere an empty part holds NaN that must not count.
      const bool empty = r == 0 || random() % 4 == 0;
      lses[i].push_back(empty ? -INFINITY : 20 * normal(random));
      for (int d = 0; d < kDim; ++d) outs[i].push_back(empty ? NAN : normal(random));
    }
    keep.push_back(std::make_unique<OnDevice<float>>(outs[i]));
    keep.push_back(std::make_unique<OnDevice<float>>(lses[i]));
    on_host.push_back({outs[i].data(), lses[i].data()});
    on_device.push_back({keep[2 * i]->data(), keep[2 * i + 1]->data()});
  }
  std::vector<float> sinks(kRows);
  for (float& s : sinks) s = 20 * normal(random);
  const OnDevice<float> device_sinks(sinks);
  const std::vector<char> poison(kRows * kDim * SizeOf(dtype), '\xff');
  const OnDevice<char> out(poison);
  const OnDevice<float> lse(std::vector<float>(kRows, NAN));
  std::vector<char> want = poison;
  std::vector<float> want_lse(kRows);
  ASSERT_TRUE(MergePartials(on_host, kRows, kDim, dtype, with_sinks ? sinks.data() : nullptr, want.data(),
                            want_lse.data())
                  .ok());
  const absl::Status status =
      EnqueueMerge(on_device, kRows, kDim, dtype, with_sinks ? device_sinks.data() : nullptr, out.data(),
                   lse.data(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<char> got = out.Read();
  const std::vector<float> got_lse = lse.Read();
  // One step of the type, where the two round to either side.
  const double step = dtype == DataType::kFp32 ? 1e-6 : dtype == DataType::kFp16 ? 2e-3 : 1.6e-2;
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    const float x = test::Load(want.data(), dtype, i);
    EXPECT_NEAR(test::Load(got.data(), dtype, i), x, step * std::fmax(1.0f, std::fabs(x)));
  }
  for (int64_t r = 0; r < kRows; ++r) {
    if (std::isinf(want_lse[r])) {
      EXPECT_EQ(got_lse[r], want_lse[r]);
    } else {
      EXPECT_NEAR(got_lse[r], want_lse[r], 1e-5 * std::fmax(1.0f, std::fabs(want_lse[r])));
    }
  }
}

TEST_P(CudaMergeTest, MergesLikeTheHost) {
  for (const int parts : {1, 2, 7, kMergePartsMax}) MergeLikeTheHost(GetParam(), parts, false);
}

TEST_P(CudaMergeTest, SinksEnterOnce) {
  for (const int parts : {1, 3}) MergeLikeTheHost(GetParam(), parts, true);
}

TEST(CudaMergeBoundsTest, RefusesNoPartsAndTooMany) {
  EXPECT_EQ(EnqueueMerge({}, 1, 8, DataType::kFp32, nullptr, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<PartialState> many(kMergePartsMax + 1);
  EXPECT_EQ(EnqueueMerge(many, 1, 8, DataType::kFp32, nullptr, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace attend::cuda
