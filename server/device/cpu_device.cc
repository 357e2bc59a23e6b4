#include "server/device/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/work.h"
#include "server/device/call_cost.h"
#include "server/memory/region_pool.h"

namespace attend::server {
namespace {

// Scratch that stays resident between launches; NAIVE over long sequences takes more while it runs.
constexpr int64_t kScratchResidentMax = int64_t{256} << 20;
constexpr int64_t kScratchAlignment = 256;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t ScratchBytes(const Launch& launch, int threads) {
  const int64_t bytes = cpu::WorkspaceBytes(launch, threads);
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// What the slots share. Outlives them.
struct CpuShared {
  CpuShared(int threads, std::unique_ptr<HostPool> pool) : workers(threads), scratch(std::move(pool)) {}
  cpu::ThreadPool workers;
  std::unique_ptr<HostPool> scratch;
};

// A thread that runs one batch after the other.
class CpuSlot : public DeviceSlot {
 public:
  explicit CpuSlot(CpuShared* shared) : shared_(shared), thread_([this] { Loop(); }) {}
  ~CpuSlot() override {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

  void Run(std::span<const BatchItem> batch, Done done) override {
    absl::MutexLock lock(&mutex_);
    work_.emplace(batch, std::move(done));
    changed_.Signal();
  }

 private:
  using Work = std::pair<std::span<const BatchItem>, Done>;

  void Loop() {
    for (;;) {
      std::optional<Work> work;
      {
        absl::MutexLock lock(&mutex_);
        while (!stop_ && !work_) changed_.Wait(&mutex_);
        if (!work_) return;
        work.swap(work_);
      }
      BatchResult result;
      result.items.resize(work->first.size());
      RunBatch(work->first, &result);
      work->second(std::move(result));
    }
  }

  void RunBatch(std::span<const BatchItem> batch, BatchResult* result) {
    std::vector<Problem> problems;
    std::vector<size_t> counts;
    for (const BatchItem& item : batch) {
      const std::vector<Problem> of_item = MakeProblems(*item.call, *item.tensors);
      problems.insert(problems.end(), of_item.begin(), of_item.end());
      counts.push_back(of_item.size());
    }
    const int64_t start = NowNs();
    const absl::Status status = RunLaunch(MakeLaunch(*batch[0].call, problems));
    if (!status.ok() && batch.size() > 1) {
      // One item is at fault: alone, each gets its own status. The bits are those of the whole batch.
      for (size_t i = 0; i < batch.size(); ++i) {
        BatchResult alone;
        alone.items.resize(1);
        RunBatch(batch.subspan(i, 1), &alone);
        result->items[i] = std::move(alone.items[0]);
      }
      result->kernel_ns = NowNs() - start;
      return;
    }
    result->kernel_ns = NowNs() - start;
    const Problem* first = problems.data();
    for (size_t i = 0; i < batch.size(); ++i) {
      ItemResult& item = result->items[i];
      item.status = status;
      const Launch launch = MakeLaunch(*batch[i].call, {first, counts[i]});
      if (status.ok()) {
        const TileShape tile = cpu::FlashTile(launch);
        item.work = CountWork(launch, tile);
        item.saved_bytes = SavedBytes(launch, item.work, tile);
      }
      first += counts[i];
    }
  }

  absl::Status RunLaunch(const Launch& launch) {
    const int64_t bytes = ScratchBytes(launch, shared_->workers.thread_count());
    HostBlock scratch;
    if (bytes > 0) {
      absl::StatusOr<HostBlock> block = shared_->scratch->Allocate(bytes);
      if (!block.ok()) return block.status();
      scratch = *std::move(block);
    }
    return cpu::Run(launch, scratch.data(), bytes, shared_->workers);
  }

  CpuShared* const shared_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Work> work_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar changed_;
  std::thread thread_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, int slots, std::unique_ptr<HostPool> scratch)
      : shared_(threads, std::move(scratch)) {
    info_.name = "cpu";
    info_.kind = "cpu";
    info_.model = cpu::InstructionSet();
    info_.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    info_.slots = slots;
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<CallCost> Measure(const Call& call) const override {
    const std::vector<Problem> problems = PlaceholderProblems(call);
    const Launch launch = MakeLaunch(call, problems);
    if (absl::Status status = CheckLaunch(launch); !status.ok()) return status;
    return CallCost{ScratchBytes(launch, shared_.workers.thread_count()), PredictTime(call)};
  }

  int64_t device_bytes_max() const override { return shared_.scratch->capacity(); }
  std::unique_ptr<DeviceSlot> OpenSlot() override { return std::make_unique<CpuSlot>(&shared_); }
  DeviceMemory memory() const override {
    const HostPool& scratch = *shared_.scratch;
    return {.total = info_.memory_bytes,
            .pool = scratch.capacity(),
            .used = scratch.used_bytes(),
            .peak = scratch.peak_bytes()};
  }
  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  absl::Duration PredictTime(const Call& call) const {
    // Each sequence is laid out and counted on the slot's own thread, be it empty: a few bytes can name
    // 65536.
    constexpr absl::Duration kSequenceTime = absl::Nanoseconds(500);
    // Of one thread; what a modest core does.
    constexpr double kFlopsPerSecond = 10e9;
    constexpr double kBytesPerSecond = 2e9;
    // NAIVE carries the scores eight times (kernels/work.h), ONLINE three.
    const double score_passes = ResolvedKernel(call) == Kernel::kNaive ? 8 : 3;
    const double bytes = TensorBytes(call) + score_passes * ScoreBytes(call);
    const double seconds = Flops(call) / kFlopsPerSecond + bytes / kBytesPerSecond;
    return absl::Microseconds(5) + call.batch * kSequenceTime +
           absl::Seconds(seconds / shared_.workers.thread_count());
  }

  CpuShared shared_;
  DeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  if (options.threads < 0 || options.slots < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " threads, ", options.slots, " slots: at least 0 and 1"));
  }
  absl::StatusOr<std::unique_ptr<HostRegion>> region = MapHostRegion(options.workspace_bytes_max);
  if (!region.ok()) return region.status();
  RegionPoolOptions pool_options;
  pool_options.resident_bytes_max = kScratchResidentMax;
  return std::make_unique<CpuDevice>(options.threads, options.slots,
                                     CreateRegionPool(*std::move(region), pool_options));
}

}  // namespace attend::server
