#include "server/device/null_device.h"

#include <cstring>
#include <limits>
#include <utility>

#include "server/device/call_cost.h"

namespace attend::server {
namespace {

void Zero(void* data, int64_t bytes) {
  if (data != nullptr && bytes > 0) memset(data, 0, bytes);
}

class NullSlot : public DeviceSlot {
 public:
  void Run(std::span<const BatchItem> batch, Done done) override {
    for (const BatchItem& item : batch) {
      Zero(item.tensors->out, item.call->out_bytes());
      Zero(item.tensors->lse, item.call->lse_bytes());
      Zero(item.tensors->weights, item.call->weights_bytes());
    }
    BatchResult result;
    result.items.resize(batch.size());
    done(std::move(result));
  }
};

class NullDevice : public Device {
 public:
  explicit NullDevice(int slots) {
    info_.name = "null";
    info_.kind = "null";
    info_.model = "answers zeros";
    info_.slots = slots;
  }

  const DeviceInfo& info() const override { return info_; }
  absl::Status Check(const Call& call) const override { return CheckCall(call); }
  int64_t DeviceBytes(const Call&) const override { return 0; }
  absl::Duration PredictTime(const Call& call) const override {
    constexpr double kBytesPerSecond = 4e9;
    return absl::Microseconds(1) + absl::Seconds(TensorBytes(call) / kBytesPerSecond);
  }
  int64_t device_bytes_max() const override { return std::numeric_limits<int64_t>::max(); }
  std::unique_ptr<DeviceSlot> OpenSlot() override { return std::make_unique<NullSlot>(); }
  DeviceMemory memory() const override { return {}; }
  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> CreateNullDevice(int slots) { return std::make_unique<NullDevice>(slots); }

}  // namespace attend::server
