// Tensors of large requests on the GPU ahead of their batch: each is copied when it is whole in pinned
// memory, while the rest of its request, or the next one, is still parsed.
//
// The memory is set aside at start, apart from what batches run in: what waits can never take what a launch
// needs. The copies have a stream of their own, in the order in which they come.
#ifndef ATTEND_SERVER_DEVICE_CUDA_STAGING_H_
#define ATTEND_SERVER_DEVICE_CUDA_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/device/cuda/cuda_api.h"
#include "server/device/device.h"
#include "server/memory/host_pool.h"

namespace attend::server {

class CudaStaging;

// Thread-safe. Lives as long as what it has staged.
class Stager : public std::enable_shared_from_this<Stager> {
 public:
  // bytes of device memory, for requests of request_bytes_min or more. RESOURCE_EXHAUSTED where the memory
  // cannot be had.
  static absl::StatusOr<std::shared_ptr<Stager>> Create(std::shared_ptr<CudaApi> api, int64_t bytes,
                                                        int64_t request_bytes_min);
  ~Stager();

  // Room for what lies in these bytes of pinned memory, 256-byte aligned; null where there is none, or they
  // are too few. Does not wait.
  std::unique_ptr<CudaStaging> Stage(std::span<const std::byte> inputs);

  int64_t capacity() const { return pool_->capacity(); }
  int64_t used_bytes();  // does not wait
  int64_t peak_bytes() const { return pool_->peak_bytes(); }
  // The sticky fault that it has met.
  absl::Status Health() const;

 private:
  friend class CudaStaging;
  // A copy between two events.
  struct Copy {
    std::span<const std::byte> from;
    CudaApi::Event begin = nullptr, end = nullptr;
  };
  // What nobody wants any more, and the GPU may still write to. It holds its memory so long: of them, and of
  // their events, there are no more than requests of request_bytes_min fit into the stager's memory.
  struct Dropped {
    HostBlock block;
    std::vector<Copy> copies;
  };

  explicit Stager(std::shared_ptr<CudaApi> api, int64_t request_bytes_min)
      : api_(std::move(api)), request_bytes_min_(request_bytes_min) {}
  absl::StatusOr<Copy> Enqueue(std::span<const std::byte> from, std::byte* to);
  // failed: a copy may be on its way without an event that tells. It is waited for here, by nobody else.
  void Drop(Dropped dropped, bool failed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes back what the stream has passed of what was dropped. Does not wait.
  void Reclaim() ABSL_LOCKS_EXCLUDED(mutex_);
  // True behind a sticky fault, too, where the GPU writes nothing any more. After another error the event is
  // asked again by the next Reclaim.
  bool HasPassed(const Dropped& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DestroyEvents(std::span<const Copy> copies);

  const std::shared_ptr<CudaApi> api_;
  const int64_t request_bytes_min_;
  std::unique_ptr<HostPool> pool_;
  CudaApi::Stream stream_ = nullptr;

  mutable absl::Mutex mutex_;  // held while a copy is enqueued, so that no other is between its events
  std::vector<Dropped> dropped_ ABSL_GUARDED_BY(mutex_);
  absl::Status fault_ ABSL_GUARDED_BY(mutex_);
};

// One request's tensors. Thread-safe.
class CudaStaging final : public Staging {
 public:
  // Copies of one request, more than it has tensors; what comes after them is not staged.
  static constexpr size_t kCopiesMax = 8;

  CudaStaging(std::shared_ptr<Stager> stager, std::span<const std::byte> inputs, HostBlock block)
      : stager_(std::move(stager)), inputs_(inputs), block_(std::move(block)) {}
  ~CudaStaging() override;

  void CopyIn(std::span<const std::byte> bytes) override;

  // Where the copy of these bytes of pinned memory lies, made or on its way, with their alignment to 256
  // bytes; null where there is none.
  std::byte* Find(const std::byte* bytes, int64_t count) const;
  // What is enqueued on the stream from now on comes after every copy.
  absl::Status EnqueueWait(CudaApi::Stream stream) const;

  struct Figures {
    int64_t bytes = 0;
    int64_t ns = 0;  // of the copies alone
  };
  // Once every copy has been made.
  Figures figures() const;

 private:
  const std::shared_ptr<Stager> stager_;
  const std::span<const std::byte> inputs_;
  HostBlock block_;

  mutable absl::Mutex mutex_;
  std::vector<Stager::Copy> copies_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Batches of a CudaDevice bring what it has staged, which is of its own kind.
inline const CudaStaging& AsCuda(const Staging& staging) { return static_cast<const CudaStaging&>(staging); }

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_CUDA_STAGING_H_
