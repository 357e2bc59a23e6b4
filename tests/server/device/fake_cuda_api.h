// A GPU made of host memory and threads: streams run what they are given in order, on a thread each, and
// launches compute in float64. Any operation can be made to fail.
#ifndef ATTEND_TESTS_SERVER_DEVICE_FAKE_CUDA_API_H_
#define ATTEND_TESTS_SERVER_DEVICE_FAKE_CUDA_API_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/device/cuda/cuda_api.h"

namespace attend::test {

class FakeCudaApi final : public server::CudaApi {
 public:
  explicit FakeCudaApi(int ordinal = 0);
  ~FakeCudaApi() override;

  // The operation ("CopyIn", "Enqueue", "AllocateDevice", ...) fails so from its nth call on, n = 0 the
  // next, for `times` calls. A sticky fault breaks the device.
  void FailFrom(const std::string& operation, int nth, int times, absl::Status status);
  // Launches that streams have come to wait while this is held; copies in, while that is.
  absl::Mutex& gate() { return gate_; }
  absl::Mutex& copy_gate() { return copy_gate_; }
  // From now on streams run nothing: no event passes, and who asks for one is answered with this fault.
  void BreakDevice(absl::Status fault);

  int64_t device_bytes_allocated() const;
  int launches() const;
  int urgent_launches() const;  // of these, on streams of that priority
  int64_t copies_in() const;
  int events() const { return events_; }  // that there are
  // Operations since the last call, by name; of Passed only whether there was one.
  std::map<std::string, int> TakeCounts();

  const Properties& properties() const override { return properties_; }
  absl::StatusOr<void*> AllocateDevice(int64_t bytes) override;
  void FreeDevice(void* memory) override;
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  void FreePinned(void* memory) override;
  absl::StatusOr<int64_t> FreeMemoryBytes() override { return int64_t{64} << 20; }
  absl::StatusOr<Stream> CreateStream(Priority priority) override;
  void DestroyStream(Stream stream) override;
  absl::StatusOr<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  absl::Status CopyIn(std::span<const Transfer> transfers, Stream stream) override;
  absl::Status CopyOut(std::span<const Transfer> transfers, Stream stream) override;
  absl::Status Record(Event event, Stream stream) override;
  absl::Status EnqueueWait(Event event, Stream stream) override;
  absl::StatusOr<bool> Passed(Event event) override;
  absl::Status AwaitStream(Stream stream) override;
  absl::StatusOr<int64_t> ElapsedNs(Event begin, Event end) override;
  absl::StatusOr<WorkspaceNeed> WorkspaceNeedOf(const Launch& launch) const override;
  TileShape FlashTile(const Launch&) const override { return {64, 64}; }
  absl::Status Enqueue(const Launch& launch, void* workspace, int64_t workspace_bytes, void* pinned,
                       int64_t pinned_bytes, Stream stream) override;

 private:
  struct FakeStream;
  struct Failure {
    int skip;
    int times;
    absl::Status status;
  };

  // OK, or the failure set for the operation.
  absl::Status Meet(const std::string& operation);
  void Push(Stream stream, std::function<void()> work);
  // Waits until the streams have come to the end of what they were given.
  void AwaitStreams();

  const Properties properties_;
  absl::Mutex gate_, copy_gate_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Failure> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, int64_t> device_memory_ ABSL_GUARDED_BY(mutex_);
  std::set<FakeStream*> streams_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> broken_{false};
  std::atomic<int> events_{0};
  absl::Status fault_ ABSL_GUARDED_BY(mutex_);
  int launches_ ABSL_GUARDED_BY(mutex_) = 0;
  int urgent_launches_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copies_in_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A machine with these GPUs, which share their state with what is opened.
server::Gpus FakeGpus(std::vector<std::shared_ptr<FakeCudaApi>> gpus);

}  // namespace attend::test

#endif  // ATTEND_TESTS_SERVER_DEVICE_FAKE_CUDA_API_H_
