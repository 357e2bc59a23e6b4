// Which of a machine's GPUs a server takes.
#include "server/process/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/device/fake_cuda_api.h"
#include "tests/server/process/fixture.h"

namespace attend::server {
namespace {

using test::FakeCudaApi;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three GPUs, the second of which cannot be used.
class DevicesTest : public testing::Test {
 protected:
  absl::StatusOr<Devices> Make(const std::string& device, const std::string& devices) const {
    ServerOptions options = TestOptions();
    options.device = device;
    options.devices = devices;
    options.device_bytes_max = int64_t{16} << 20;
    const absl::Status resolved = ResolveOptions(&options);
    if (!resolved.ok()) return resolved;
    const Gpus sound = test::FakeGpus({first_, second_, third_});
    return MakeDevices(options, {sound.count, [&](int ordinal) -> absl::StatusOr<std::shared_ptr<CudaApi>> {
                                   if (ordinal == 1) return unfit_;
                                   return sound.open(ordinal);
                                 }});
  }
  static std::vector<std::string> Names(const absl::StatusOr<Devices>& made) {
    if (!made.ok()) return {std::string(made.status().message())};
    std::vector<std::string> names;
    for (const auto& device : made->devices) names.push_back(device->info().name);
    return names;
  }

  const std::shared_ptr<FakeCudaApi> first_ = std::make_shared<FakeCudaApi>(0),
                                     second_ = std::make_shared<FakeCudaApi>(1),
                                     third_ = std::make_shared<FakeCudaApi>(2);
  absl::Status unfit_ = absl::FailedPreconditionError("GPU 1 is too old");
};

TEST_F(DevicesTest, AGpuThatIsLeftOutMayBeTooOld) {
  EXPECT_THAT(Names(Make("cuda", "2,0")), ElementsAre("cuda:2", "cuda:0"));
  EXPECT_THAT(Names(Make("auto", "0")), ElementsAre("cuda:0"));
}

TEST_F(DevicesTest, OneThatIsChosenAndTooOldIsRefusedBeforeAnyMemoryIsTaken) {
  for (const char* devices : {"all", "1", "0,1"}) {
    const auto made = Make("cuda", devices);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().message(), devices == std::string("1")
                                           ? "--device=cuda: GPU 1 is too old"
                                           : "--device=cuda: GPU 1 is too old; leave it out with --devices");
    EXPECT_THAT(first_->TakeCounts(), IsEmpty());
  }
}

TEST_F(DevicesTest, AutoLeavesItToTheCpuOnlyWhereEveryChosenChipIsTooOld) {
  const auto cpu = Make("auto", "1");
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->choice, "cpu: GPU 1 is too old");
  EXPECT_THAT(Names(Make("auto", "all")),
              ElementsAre("--device=auto: GPU 1 is too old; leave it out with --devices"));
}

TEST_F(DevicesTest, AutoDoesNotPassOverAGpuThatDoesNotWork) {
  unfit_ = absl::InternalError("GPU 1 is broken");
  for (const char* devices : {"all", "1"}) {
    EXPECT_THAT(Names(Make("auto", devices)), ElementsAre("--device=auto: GPU 1 is broken"));
  }
}

TEST_F(DevicesTest, AnIndexThatThereIsNotIsNamed) {
  EXPECT_THAT(Names(Make("auto", "0,3")), ElementsAre("--devices: \"3\" is not a GPU's index; there are 3"));
}

}  // namespace
}  // namespace attend::server
