#include "server/runtime/scheduler.h"

#include <utility>

#include "server/runtime/scheduler_core.h"

namespace attend::server {
namespace {

// Owns the core's threads and devices; what is left of the core lives as long as its admissions.
class SchedulerHandle : public Scheduler {
 public:
  explicit SchedulerHandle(std::shared_ptr<SchedulerCore> core) : core_(std::move(core)) { core_->Start(); }
  ~SchedulerHandle() override { core_->Stop(); }

  absl::StatusOr<std::unique_ptr<Admission>> Admit(const Call& call, int64_t host_bytes,
                                                   const Caller& caller) override {
    return core_->Admit(call, host_bytes, caller);
  }
  std::unique_ptr<Staging> Stage(const Admission& admission, std::span<const std::byte> inputs) override {
    return core_->Stage(admission, inputs);
  }
  void Submit(std::unique_ptr<Job> job, std::unique_ptr<Admission> admission) override {
    core_->Submit(std::move(job), std::move(admission));
  }
  void Cancel(uint64_t admission_id) override { core_->Cancel(admission_id); }
  bool Drain(absl::Duration limit) override { return core_->Drain(limit); }
  absl::Status Health() const override { return core_->Health(); }
  SchedulerQueue queue() const override { return core_->queue(); }
  std::vector<int> BusySlots() const override { return core_->BusySlots(); }
  const std::vector<std::unique_ptr<Device>>& devices() const override { return core_->devices(); }

 private:
  const std::shared_ptr<SchedulerCore> core_;
};

}  // namespace

std::unique_ptr<Scheduler> Scheduler::Create(const SchedulerOptions& options,
                                             std::vector<std::unique_ptr<Device>> devices,
                                             SchedulerObserver* observer) {
  return std::make_unique<SchedulerHandle>(
      std::make_shared<SchedulerCore>(options, std::move(devices), observer));
}

}  // namespace attend::server
