#include "tests/server/device/fake_cuda_api.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/kernels/host_float.h"
#include "tests/kernels/reference.h"

namespace attend::test {
namespace {

struct FakeEvent {
  std::atomic<int64_t> passed_ns{0};
  std::atomic<int> pending{0};  // recordings that the stream has not come to
};

// An event may be destroyed before the stream has come to it.
const std::shared_ptr<FakeEvent>& AsFake(void* event) {
  return *static_cast<std::shared_ptr<FakeEvent>*>(event);
}

// Writes what Reference computes where the problem says.
void Compute(const Launch& launch, const Problem& p) {
  const Expected expected = Reference(launch, p);
  const int64_t dv = launch.v_head_dim;
  for (int64_t row = 0; row < p.q_len_padded; ++row) {
    for (int64_t head = 0; head < p.q_heads; ++head) {
      if (p.lse != nullptr) {
        p.lse[head * p.lse_head_stride + row] = static_cast<float>(expected.lse[head * p.q_len_padded + row]);
      }
      for (int64_t d = 0; d < dv; ++d) {
        const auto x = static_cast<float>(expected.out[(row * p.q_heads + head) * dv + d]);
        Store(p.out, launch.dtype, row * p.out_strides.token + head * p.out_strides.head + d, x);
      }
    }
  }
}

}  // namespace

struct FakeCudaApi::FakeStream {
  Priority priority = Priority::kNormal;
  absl::Mutex mutex;
  std::deque<std::function<void()>> work ABSL_GUARDED_BY(mutex);
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::thread thread;

  void Loop() {
    while (true) {
      std::function<void()> next;
      {
        absl::MutexLock lock(&mutex);
        const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stop || !work.empty(); };
        mutex.Await(absl::Condition(&ready));
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
      }
      next();
    }
  }
};

FakeCudaApi::FakeCudaApi(int ordinal) : properties_{ordinal, "Fake GPU", "GPU-fake", int64_t{128} << 20, 4} {}
FakeCudaApi::~FakeCudaApi() = default;

void FakeCudaApi::FailFrom(const std::string& operation, int nth, int times, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failures_[operation] = {nth, times, std::move(status)};
}

void FakeCudaApi::BreakDevice(absl::Status fault) {
  {
    absl::MutexLock lock(&mutex_);
    fault_ = std::move(fault);
    broken_ = true;
  }
  AwaitStreams();  // a GPU that has met a fault touches no memory any more
}

int64_t FakeCudaApi::device_bytes_allocated() const {
  absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const auto& [memory, size] : device_memory_) bytes += size;
  return bytes;
}

int FakeCudaApi::launches() const {
  absl::MutexLock lock(&mutex_);
  return launches_;
}

int FakeCudaApi::urgent_launches() const {
  absl::MutexLock lock(&mutex_);
  return urgent_launches_;
}

int64_t FakeCudaApi::copies_in() const {
  absl::MutexLock lock(&mutex_);
  return copies_in_;
}

std::map<std::string, int> FakeCudaApi::TakeCounts() {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, int> counts = std::exchange(counts_, {});
  // How often a thread asks is a matter of time.
  if (counts.contains("Passed")) counts["Passed"] = 1;
  return counts;
}

absl::Status FakeCudaApi::Meet(const std::string& operation) {
  absl::Status met;
  {
    absl::MutexLock lock(&mutex_);
    ++counts_[operation];
    const auto it = failures_.find(operation);
    if (it == failures_.end()) return absl::OkStatus();
    if (it->second.skip-- > 0) return absl::OkStatus();
    if (it->second.times-- <= 0) {
      failures_.erase(it);
      return absl::OkStatus();
    }
    met = it->second.status;
  }
  if (server::IsStickyFault(met)) BreakDevice(met);
  return met;
}

void FakeCudaApi::Push(Stream stream, std::function<void()> work) {
  auto* s = static_cast<FakeStream*>(stream);
  absl::MutexLock lock(&s->mutex);
  s->work.push_back([this, work = std::move(work)] {
    if (!broken_) work();
  });
}

void FakeCudaApi::AwaitStreams() {
  std::vector<std::shared_ptr<absl::Notification>> passed;
  {
    absl::MutexLock lock(&mutex_);
    for (FakeStream* stream : streams_) {
      passed.push_back(std::make_shared<absl::Notification>());
      absl::MutexLock stream_lock(&stream->mutex);
      // A stream comes to the end of what it was given before it ends.
      stream->work.push_back([told = passed.back()] { told->Notify(); });
    }
  }
  for (const auto& end : passed) end->WaitForNotification();
}

absl::StatusOr<void*> FakeCudaApi::AllocateDevice(int64_t bytes) {
  if (absl::Status s = Meet("AllocateDevice"); !s.ok()) return s;
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(memory, 0xff, bytes);
  absl::MutexLock lock(&mutex_);
  device_memory_[memory] = bytes;
  return memory;
}

void FakeCudaApi::FreeDevice(void* memory) {
  absl::MutexLock lock(&mutex_);
  device_memory_.erase(memory);
  std::free(memory);
}

absl::StatusOr<void*> FakeCudaApi::AllocatePinned(int64_t bytes) {
  if (absl::Status s = Meet("AllocatePinned"); !s.ok()) return s;
  return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}

void FakeCudaApi::FreePinned(void* memory) { std::free(memory); }

absl::StatusOr<server::CudaApi::Stream> FakeCudaApi::CreateStream(Priority priority) {
  if (absl::Status s = Meet("CreateStream"); !s.ok()) return s;
  auto* stream = new FakeStream;
  stream->priority = priority;
  stream->thread = std::thread([stream] { stream->Loop(); });
  absl::MutexLock lock(&mutex_);
  streams_.insert(stream);
  return static_cast<Stream>(stream);
}

void FakeCudaApi::DestroyStream(Stream stream) {
  auto* s = static_cast<FakeStream*>(stream);
  {
    absl::MutexLock lock(&mutex_);
    streams_.erase(s);
  }
  {
    absl::MutexLock lock(&s->mutex);
    s->stop = true;
  }
  s->thread.join();
  delete s;
}

absl::StatusOr<server::CudaApi::Event> FakeCudaApi::CreateEvent() {
  if (absl::Status s = Meet("CreateEvent"); !s.ok()) return s;
  ++events_;
  return static_cast<Event>(new std::shared_ptr<FakeEvent>(std::make_shared<FakeEvent>()));
}

void FakeCudaApi::DestroyEvent(Event event) {
  --events_;
  delete static_cast<std::shared_ptr<FakeEvent>*>(event);
}

absl::Status FakeCudaApi::CopyIn(std::span<const Transfer> transfers, Stream stream) {
  if (absl::Status s = Meet("CopyIn"); !s.ok()) return s;
  {
    absl::MutexLock lock(&mutex_);
    copies_in_ += static_cast<int64_t>(transfers.size());
  }
  for (const Transfer& t : transfers) {
    Push(stream, [this, t] {
      absl::MutexLock lock(&copy_gate_);
      std::memcpy(t.to, t.from, t.bytes);
    });
  }
  return absl::OkStatus();
}

absl::Status FakeCudaApi::CopyOut(std::span<const Transfer> transfers, Stream stream) {
  if (absl::Status s = Meet("CopyOut"); !s.ok()) return s;
  for (const Transfer& t : transfers) Push(stream, [t] { std::memcpy(t.to, t.from, t.bytes); });
  return absl::OkStatus();
}

absl::Status FakeCudaApi::Record(Event event, Stream stream) {
  if (absl::Status s = Meet("Record"); !s.ok()) return s;
  const std::shared_ptr<FakeEvent> recorded = AsFake(event);
  ++recorded->pending;
  Push(stream, [recorded] {
    recorded->passed_ns = absl::GetCurrentTimeNanos();
    --recorded->pending;
  });
  return absl::OkStatus();
}

absl::Status FakeCudaApi::EnqueueWait(Event event, Stream stream) {
  if (absl::Status s = Meet("EnqueueWait"); !s.ok()) return s;
  Push(stream, [this, awaited = AsFake(event)] {
    while (awaited->pending > 0 && !broken_) absl::SleepFor(absl::Microseconds(50));
  });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeCudaApi::Passed(Event event) {
  if (absl::Status s = Meet("Passed"); !s.ok()) return s;
  {
    absl::MutexLock lock(&mutex_);
    if (!fault_.ok()) return fault_;
  }
  return AsFake(event)->pending == 0;
}

absl::Status FakeCudaApi::AwaitStream(Stream) {
  if (absl::Status s = Meet("AwaitStream"); !s.ok()) return s;
  AwaitStreams();
  absl::MutexLock lock(&mutex_);
  return fault_;
}

absl::StatusOr<int64_t> FakeCudaApi::ElapsedNs(Event begin, Event end) {
  if (absl::Status s = Meet("ElapsedNs"); !s.ok()) return s;
  return AsFake(end)->passed_ns - AsFake(begin)->passed_ns;
}

absl::StatusOr<FakeCudaApi::WorkspaceNeed> FakeCudaApi::WorkspaceNeedOf(const Launch& launch) const {
  if (absl::Status s = CheckLaunch(launch); !s.ok()) return s;
  // Work lists take problems at equal distances together, as those of kernels do.
  int64_t lists = 1;
  const auto at = [&launch](size_t i) { return static_cast<const std::byte*>(launch.problems[i].q); };
  for (size_t i = 2; i < launch.problems.size(); ++i) lists += at(i) - at(i - 1) != at(i - 1) - at(i - 2);
  return WorkspaceNeed{1024 * lists, 256 * lists};
}

absl::Status FakeCudaApi::Enqueue(const Launch& launch, void* workspace, int64_t workspace_bytes,
                                  void* pinned, int64_t pinned_bytes, Stream stream) {
  if (absl::Status s = Meet("Enqueue"); !s.ok()) return s;
  const absl::StatusOr<WorkspaceNeed> need = WorkspaceNeedOf(launch);
  if (!need.ok()) return need.status();
  if (workspace_bytes < need->device_bytes || pinned_bytes < need->pinned_bytes) {
    return absl::InvalidArgumentError("workspace too small");
  }
  {
    absl::MutexLock lock(&mutex_);
    ++launches_;
    if (static_cast<FakeStream*>(stream)->priority == Priority::kUrgent) ++urgent_launches_;
  }
  std::vector<Problem> problems(launch.problems.begin(), launch.problems.end());
  Push(stream, [=, this, problems = std::move(problems)]() mutable {
    absl::MutexLock lock(&gate_);
    // Scratch is the launch's to write, all of it.
    std::memset(workspace, 0xff, workspace_bytes);
    std::memset(pinned, 0xff, pinned_bytes);
    Launch own = launch;
    own.problems = problems;
    for (const Problem& p : problems) Compute(own, p);
  });
  return absl::OkStatus();
}

server::Gpus FakeGpus(std::vector<std::shared_ptr<FakeCudaApi>> gpus) {
  const int count = static_cast<int>(gpus.size());
  return {[count] { return count; }, [gpus = std::move(gpus)](int ordinal) { return gpus.at(ordinal); }};
}

}  // namespace attend::test
