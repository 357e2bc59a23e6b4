#include "server/device/cuda/staging.h"

#include <utility>

#include "server/device/cuda/cuda_region.h"
#include "server/memory/region_pool.h"

namespace attend::server {

absl::StatusOr<std::shared_ptr<Stager>> Stager::Create(std::shared_ptr<CudaApi> api, int64_t bytes,
                                                       int64_t request_bytes_min) {
  std::shared_ptr<Stager> stager(new Stager(std::move(api), request_bytes_min));
  auto region = AllocateDeviceRegion(stager->api_, bytes);
  if (!region.ok()) return region.status();
  stager->pool_ = CreateRegionPool(*std::move(region));
  auto stream = stager->api_->CreateStream(CudaApi::Priority::kNormal);
  if (!stream.ok()) return stream.status();
  stager->stream_ = *stream;
  return stager;
}

Stager::~Stager() {
  if (stream_ == nullptr) return;
  // Whatever comes of it, the memory is of no use any more.
  api_->AwaitStream(stream_).IgnoreError();
  for (const Dropped& dropped : dropped_) DestroyEvents(dropped.copies);
  dropped_.clear();
  api_->DestroyStream(stream_);
}

std::unique_ptr<CudaStaging> Stager::Stage(std::span<const std::byte> inputs) {
  if (static_cast<int64_t>(inputs.size()) < request_bytes_min_) return nullptr;
  Reclaim();
  absl::MutexLock lock(&mutex_);
  if (!fault_.ok()) return nullptr;
  auto block = pool_->Allocate(static_cast<int64_t>(inputs.size()));
  if (!block.ok()) return nullptr;
  return std::make_unique<CudaStaging>(shared_from_this(), inputs, *std::move(block));
}

int64_t Stager::used_bytes() {
  Reclaim();
  return pool_->used_bytes();
}

absl::Status Stager::Health() const {
  absl::MutexLock lock(&mutex_);
  return fault_;
}

absl::StatusOr<Stager::Copy> Stager::Enqueue(std::span<const std::byte> from, std::byte* to) {
  Copy copy = {from};
  const auto enqueue = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    for (CudaApi::Event* event : {&copy.begin, &copy.end}) {
      auto created = api_->CreateEvent();
      if (!created.ok()) return created.status();
      *event = *created;
    }
    const CudaApi::Transfer transfer = {to, from.data(), static_cast<int64_t>(from.size())};
    if (auto s = api_->Record(copy.begin, stream_); !s.ok()) return s;
    if (auto s = api_->CopyIn({&transfer, 1}, stream_); !s.ok()) return s;
    return api_->Record(copy.end, stream_);
  };
  absl::MutexLock lock(&mutex_);
  absl::Status status = enqueue();
  if (status.ok()) return copy;
  Note(status);
  DestroyEvents({&copy, 1});
  return status;
}

void Stager::Drop(Dropped dropped, bool failed) {
  if (failed) {
    // No event tells when the copy that failed has passed: all of the stream has to, while others stage and
    // copy. Behind a sticky fault the GPU writes nothing any more.
    const absl::Status waited = api_->AwaitStream(stream_);
    DestroyEvents(dropped.copies);
    absl::MutexLock lock(&mutex_);
    Note(waited);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    dropped_.push_back(std::move(dropped));
  }
  Reclaim();
}

void Stager::Reclaim() {
  absl::MutexLock lock(&mutex_);
  std::erase_if(dropped_, [this](const Dropped& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!HasPassed(dropped)) return false;
    DestroyEvents(dropped.copies);
    return true;
  });
}

bool Stager::HasPassed(const Dropped& dropped) {
  if (dropped.copies.empty()) return true;
  const absl::StatusOr<bool> passed = api_->Passed(dropped.copies.back().end);
  if (passed.ok()) return *passed;
  Note(passed.status());
  return IsStickyFault(passed.status());
}

void Stager::Note(const absl::Status& status) {
  if (fault_.ok() && IsStickyFault(status)) fault_ = status;
}

void Stager::DestroyEvents(std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    for (CudaApi::Event event : {copy.begin, copy.end}) {
      if (event != nullptr) api_->DestroyEvent(event);
    }
  }
}

CudaStaging::~CudaStaging() {
  absl::MutexLock lock(&mutex_);
  stager_->Drop({std::move(block_), std::move(copies_)}, failed_);
}

void CudaStaging::CopyIn(std::span<const std::byte> bytes) {
  absl::MutexLock lock(&mutex_);
  const int64_t offset = bytes.data() - inputs_.data();
  if (failed_ || copies_.size() == kCopiesMax) return;
  absl::StatusOr<Stager::Copy> copy = stager_->Enqueue(bytes, block_.data() + offset);
  failed_ = !copy.ok();
  if (copy.ok()) copies_.push_back(*copy);
}

std::byte* CudaStaging::Find(const std::byte* bytes, int64_t count) const {
  absl::MutexLock lock(&mutex_);
  for (const Stager::Copy& copy : copies_) {
    const std::byte* const end = copy.from.data() + copy.from.size();
    if (bytes >= copy.from.data() && bytes + count <= end) return block_.data() + (bytes - inputs_.data());
  }
  return nullptr;
}

absl::Status CudaStaging::EnqueueWait(CudaApi::Stream stream) const {
  absl::MutexLock lock(&mutex_);
  if (copies_.empty()) return absl::OkStatus();
  return stager_->api_->EnqueueWait(copies_.back().end, stream);
}

CudaStaging::Figures CudaStaging::figures() const {
  absl::MutexLock lock(&mutex_);
  Figures figures;
  for (const Stager::Copy& copy : copies_) {
    figures.bytes += static_cast<int64_t>(copy.from.size());
    figures.ns += stager_->api_->ElapsedNs(copy.begin, copy.end).value_or(0);
  }
  return figures;
}

}  // namespace attend::server
