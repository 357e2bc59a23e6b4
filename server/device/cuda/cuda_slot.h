// Room for one batch in flight on a GPU: a stream of its own, of either priority, with the events that time
// it.
#ifndef ATTEND_SERVER_DEVICE_CUDA_CUDA_SLOT_H_
#define ATTEND_SERVER_DEVICE_CUDA_CUDA_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/attention.h"
#include "server/device/cuda/batch_plan.h"
#include "server/device/cuda/cuda_api.h"
#include "server/device/device.h"
#include "server/memory/host_pool.h"

namespace attend::server {

// Run is called by one thread at a time; Begin, Passed and End by one thread each, in this order.
class CudaSlot final : public DeviceSlot {
 public:
  // The device of the slot, which outlives it. Thread-safe.
  class Owner {
   public:
    virtual CudaApi& api() = 0;
    // Launches predicted to take longer are cut.
    virtual absl::Duration launch_max() const = 0;
    // Gives the slot its blocks and begins its batch, now or when there is room for it; fails the batch where
    // there never will be.
    virtual void Place(CudaSlot* slot) = 0;
    // All of the slot's batch is enqueued: its end is looked for.
    virtual void Watch(CudaSlot* slot) = 0;
    // Takes the blocks back, and begins what waited for them.
    virtual void Release(CudaSlot* slot) = 0;
    virtual void ReportFault(const absl::Status& fault) = 0;

   protected:
    ~Owner() = default;
  };

  explicit CudaSlot(Owner* owner) : owner_(owner) {}
  ~CudaSlot() override;

  absl::Status Open();
  void Run(std::span<const BatchItem> batch, Done done) override;

  // Called by the owner with no lock held: begins a batch that has its memory; ends one that the stream has
  // passed, or never will.
  void Begin();
  void End(const absl::Status& passed);
  // Whether the stream has passed the batch; the fault that keeps it from doing so.
  absl::StatusOr<bool> Passed();
  // Ends a batch that has not begun.
  void Fail(const absl::Status& status);

  // What the batch needs, in bytes.
  int64_t device_bytes() const { return plan_.bytes + workspace_bytes_; }
  int64_t pinned_bytes() const { return pinned_bytes_; }

  // Of the batch in flight; the owner takes and gives them back.
  HostBlock device_block, pinned_block;
  absl::Time begun;

 private:
  absl::Status EnqueueAll();
  // Lets the stream wait for what was copied ahead of the batch.
  absl::Status AwaitStaged();
  // Moves tensors that are taken to lie nowhere to the batch's memory, or to where they have been staged.
  void MoveTo(std::byte* base, std::vector<Problem>* problems) const;
  absl::Status EnqueueParts(std::byte* base);
  void CountTimes(BatchResult* result) const;

  Owner* const owner_;
  CudaApi::Stream normal_ = nullptr, urgent_ = nullptr, stream_ = nullptr;
  // In the order of the stream. kCopied: the batch's own copies have ended; only where something was staged.
  enum { kBegun, kCopied, kThere, kComputed, kEnded, kEvents };
  CudaApi::Event events_[kEvents] = {};

  // The batch in flight.
  std::span<const BatchItem> batch_;
  Done done_;
  BatchPlan plan_;
  std::vector<Problem> problems_;  // for counts: they lie nowhere
  Launch launch_;
  std::vector<std::vector<Problem>> parts_;  // what is launched
  std::vector<int64_t> part_pinned_bytes_;
  int64_t workspace_bytes_ = 0, pinned_bytes_ = 0;
  absl::Status enqueued_;
  absl::Status recorded_;  // of the last event: not OK, and it says nothing
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_CUDA_SLOT_H_
