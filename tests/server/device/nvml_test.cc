// Who tells a GPU's memory: a libnvidia-ml of our own, which works, fails at each call, or is not there.
#include "server/device/cuda/nvml.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/cuda/cuda_device.h"
#include "tests/server/device/fake_cuda_api.h"

namespace attend::test {
namespace {

using server::NvmlDevice;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kCudaTotal = int64_t{128} << 20, kCudaFree = int64_t{64} << 20;  // of FakeCudaApi
constexpr int64_t kNvmlTotal = int64_t{129} << 20, kNvmlFree = int64_t{5} << 20;   // of the fake library

std::string Library() { return getenv("FAKE_NVML"); }
std::string OldLibrary() { return getenv("FAKE_NVML_WITHOUT_UUIDS"); }

class NvmlTest : public testing::Test {
 protected:
  ~NvmlTest() override { unsetenv("FAKE_NVML_FAILS"); }

  std::unique_ptr<server::Device> MakeDevice(const std::string& library) {
    server::CudaDeviceOptions options;
    options.nvml_library = library;
    auto device = server::MakeCudaDevice(std::make_shared<FakeCudaApi>(), options);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }
};

TEST_F(NvmlTest, TellsTotalAndFreeOfTheGpuAndShutsTheLibraryDown) {
  void* const library = dlopen(Library().c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const int* const users = static_cast<int*>(dlsym(library, "fake_nvml_users"));
  {
    auto device = NvmlDevice::Open(Library(), "GPU-fake", kCudaTotal);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(*users, 1);
    const auto memory = (*device)->ReadMemory();
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->total, kNvmlTotal);
    EXPECT_EQ(memory->free, kNvmlFree);
    setenv("FAKE_NVML_FAILS", "memory", 1);
    EXPECT_FALSE((*device)->ReadMemory().ok());
    EXPECT_FALSE(NvmlDevice::Open(Library(), "GPU-fake", kCudaTotal).ok());
    EXPECT_EQ(*users, 1);
  }
  EXPECT_EQ(*users, 0);
  dlclose(library);
}

TEST_F(NvmlTest, SaysWhyItIsOfNoUse) {
  const auto why = [](const std::string& library, const std::string& uuid, int64_t cuda_total) {
    return std::string(NvmlDevice::Open(library, uuid, cuda_total).status().message());
  };
  EXPECT_THAT(why("libnot-there.so.1", "GPU-fake", kCudaTotal), HasSubstr("libnot-there.so.1"));
  EXPECT_THAT(why(OldLibrary(), "GPU-fake", kCudaTotal), HasSubstr("lacks a function"));
  EXPECT_THAT(why(Library(), "MIG-fake", kCudaTotal), HasSubstr("nvmlDeviceGetHandleByUUID of MIG-fake"));
  // A slice of a seventh, where the library tells of the whole GPU.
  EXPECT_THAT(why(Library(), "GPU-fake", kCudaTotal / 7), HasSubstr("bytes of GPU-fake, CUDA 19173961"));
  for (const auto& [call, name] : {std::pair("init", "nvmlInit_v2"),
                                   {"handle", "nvmlDeviceGetHandleByUUID"},
                                   {"memory", "nvmlDeviceGetMemoryInfo"}}) {
    setenv("FAKE_NVML_FAILS", call, 1);
    EXPECT_THAT(why(Library(), "GPU-fake", kCudaTotal), StartsWith(name));
  }
}

TEST_F(NvmlTest, ADeviceTellsWhatNvmlTellsAndElseWhatCudaTells) {
  const auto with = MakeDevice(Library());
  EXPECT_EQ(with->info().memory_source, "NVML");
  EXPECT_EQ(with->memory().total, kNvmlTotal);
  EXPECT_EQ(with->memory().free, kNvmlFree);
  setenv("FAKE_NVML_FAILS", "memory", 1);
  EXPECT_EQ(with->memory().total, kCudaTotal);
  EXPECT_EQ(with->memory().free, kCudaFree);

  const auto without = MakeDevice("libnot-there.so.1");
  EXPECT_THAT(without->info().memory_source, StartsWith("CUDA: libnot-there.so.1"));
  EXPECT_EQ(without->memory().total, kCudaTotal);
  EXPECT_EQ(without->memory().free, kCudaFree);
}

}  // namespace
}  // namespace attend::test
