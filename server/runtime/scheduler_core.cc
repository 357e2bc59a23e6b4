// Admission, submission, cancellation and drain; scheduler_run.cc forms and runs batches,
// scheduler_timers.cc keeps time.
#include "server/runtime/scheduler_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/device/call_cost.h"
#include "server/error.h"

namespace attend::server {
namespace {

class NoObserver : public SchedulerObserver {
 public:
  void OnRejected(absl::string_view) override {}
  void OnDropped(absl::string_view) override {}
  void OnBatchLimited(absl::string_view) override {}
  void OnBatch(const DeviceInfo&, const Launch&, int64_t, int64_t, const BatchResult&) override {}
  void OnDeviceFault(const DeviceInfo&, const absl::Status&) override {}
};

SchedulerObserver* OrNone(SchedulerObserver* observer) {
  static NoObserver none;
  return observer != nullptr ? observer : &none;
}

class CoreAdmission : public Admission {
 public:
  CoreAdmission(std::shared_ptr<SchedulerCore> core, Entry* entry)
      : core_(std::move(core)), entry_(entry), id_(entry->id) {}
  ~CoreAdmission() override { core_->Release(entry_); }
  uint64_t id() const override { return id_; }
  Entry* entry() const { return entry_; }

 private:
  const std::shared_ptr<SchedulerCore> core_;
  Entry* const entry_;
  const uint64_t id_;
};

absl::Status TooLarge(absl::string_view what, int64_t asked, absl::string_view limit, int64_t bytes) {
  return ErrorWithReason(absl::StatusCode::kInvalidArgument, "REQUEST_TOO_LARGE",
                         absl::StrCat(what, " of the request: ", asked, " bytes; ", limit, " is ", bytes));
}

}  // namespace

SchedulerCore::SchedulerCore(const SchedulerOptions& options, std::vector<std::unique_ptr<Device>> devices,
                             SchedulerObserver* observer)
    : options_(options),
      clock_(options.clock),
      observer_(OrNone(observer)),
      devices_(std::move(devices)),
      queue_(options.max_queue_delay > absl::ZeroDuration() ? options.batch_requests_max : 0),
      states_(devices_.size()),
      staged_(devices_.size()) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    sound_devices_ |= uint64_t{1} << d;
    states_[d].free_slots = devices_[d]->info().slots;
    for (int s = 0; s < states_[d].free_slots; ++s) states_[d].slots.push_back({devices_[d]->OpenSlot()});
  }
}

SchedulerCore::~SchedulerCore() = default;

void SchedulerCore::Start() {
  timers_thread_ = std::thread([this] { RunTimers(); });
}

void SchedulerCore::Stop() {
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = closed_ = true;
    DropWaiting(ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING", "the server stops"), &outbox);
  }
  Deliver(&outbox);
  {
    absl::MutexLock lock(&mutex_);
    while (!batches_.empty()) changed_.Wait(&mutex_);
    timers_stop_ = true;
    timers_changed_.SignalAll();
  }
  timers_thread_.join();
  std::vector<DeviceState> states;
  {
    absl::MutexLock lock(&mutex_);
    sound_devices_ = 0;
    states.swap(states_);
  }
  states.clear();  // slots before their devices; joins threads, which may be finishing jobs
  devices_.clear();
}

absl::Status SchedulerCore::Measure(const Call& call, int64_t host_bytes, Entry* entry) const {
  entry->host_bytes = host_bytes;
  entry->tokens = call.layout == Layout::kPacked ? call.q_len : call.batch * call.q_len;
  entry->group = {.kernel = ResolvedKernel(call),
                  .dtype = call.dtype,
                  .head_dim = call.head_dim,
                  .v_head_dim = call.v_head_dim};
  absl::Status refused;
  for (size_t d = 0; d < devices_.size(); ++d) {
    entry->device_bytes.push_back(0);
    const absl::StatusOr<CallCost> cost = devices_[d]->Measure(call);
    absl::Status status = cost.status();
    if (status.ok()) {
      entry->device_bytes[d] = cost->device_bytes;
      const int64_t limit = devices_[d]->device_bytes_max();
      if (cost->device_bytes > limit) {
        status = TooLarge("device memory", cost->device_bytes,
                          absl::StrCat("the limit of ", devices_[d]->info().name), limit);
      }
    } else if (GetReason(status).empty()) {
      status = ErrorWithReason(absl::StatusCode::kInvalidArgument, "UNSUPPORTED", status.message());
    }
    if (!status.ok()) {
      if (refused.ok()) refused = status;
      continue;
    }
    if (entry->group.devices == 0) entry->cost = cost->time;
    entry->group.devices |= uint64_t{1} << d;
  }
  if (entry->group.devices == 0) return refused;
  if (host_bytes > options_.queue_bytes_max) {
    return TooLarge("host memory", host_bytes, "queue-bytes-max", options_.queue_bytes_max);
  }
  entry->group.long_request = entry->cost > options_.long_request_time;
  entry->group.short_request = entry->cost < options_.short_request_time;
  return absl::OkStatus();
}

absl::Duration SchedulerCore::PredictWait(absl::Duration ahead, bool long_request) const {
  // All devices work on what waits, each at its own pace.
  absl::Duration running;
  double speed = 0;
  for (size_t d = 0; d < states_.size(); ++d) {
    if ((sound_devices_ >> d & 1) == 0) continue;
    running += states_[d].outstanding;
    if (!long_request) running -= states_[d].outstanding_long;
    speed += 1 / absl::ToDoubleSeconds(states_[d].pace.Real(absl::Seconds(1)));
  }
  return speed > 0 ? (running + ahead) / speed : absl::ZeroDuration();
}

absl::Duration SchedulerCore::RetryDelay() const {
  return std::clamp(PredictWait(queue_.cost(), true), absl::Milliseconds(10), absl::Seconds(5));
}

absl::Status SchedulerCore::MayEnter(const Entry& entry, const Caller& caller) const {
  if (draining_) {
    return ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING", "the server is draining");
  }
  if ((entry.group.devices & sound_devices_) == 0) {
    return ErrorWithReason(absl::StatusCode::kUnavailable, "DEVICE_FAILED",
                           "the devices that could run this have failed");
  }
  if (pending_ >= options_.queue_requests_max) {
    return Exhausted("QUEUE_FULL", absl::StrCat(pending_, " requests wait, as many as may"), RetryDelay());
  }
  if (entry.host_bytes > options_.queue_bytes_max - host_bytes_) {
    return Exhausted("QUEUE_BYTES_FULL",
                     absl::StrCat("requests hold ", host_bytes_, " of ", options_.queue_bytes_max,
                                  " bytes; this one needs ", entry.host_bytes),
                     RetryDelay());
  }
  if (options_.queue_wait_share_max > 0 && caller.deadline < absl::InfiniteFuture() && queue_.size() > 0) {
    const absl::Duration wait =
        PredictWait(queue_.CostAhead(caller.fair_key, entry), entry.group.long_request);
    const absl::Duration left = caller.deadline - clock_->Now();
    if (left > absl::ZeroDuration() && wait > left * options_.queue_wait_share_max) {
      return Exhausted("OVERLOADED",
                       absl::StrCat("the request would wait about ", absl::FormatDuration(wait), " of the ",
                                    absl::FormatDuration(left), " until its deadline"),
                       RetryDelay());
    }
  }
  return absl::OkStatus();
}

absl::Status SchedulerCore::Reject(absl::Status status) {
  observer_->OnRejected(absl::AsciiStrToLower(GetReason(status)));
  return status;
}

absl::StatusOr<std::unique_ptr<Admission>> SchedulerCore::Admit(const Call& call, int64_t host_bytes,
                                                                const Caller& caller) {
  auto entry = std::make_unique<Entry>();
  if (absl::Status status = Measure(call, host_bytes, entry.get()); !status.ok()) return Reject(status);
  Entry* const admitted = entry.get();
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = MayEnter(*entry, caller);
    if (status.ok()) {
      entry->id = next_id_++;
      ++pending_;
      host_bytes_ += host_bytes;
      entries_.emplace(entry->id, std::move(entry));
    }
  }
  if (!status.ok()) return Reject(status);
  return std::make_unique<CoreAdmission>(shared_from_this(), admitted);
}

void SchedulerCore::Release(Entry* entry) {
  absl::MutexLock lock(&mutex_);
  if (entry->state == EntryState::kAdmitted) --pending_;
  Unstage(entry);
  host_bytes_ -= entry->host_bytes;
  entries_.erase(entry->id);
  if (entries_.empty()) changed_.SignalAll();
}

std::unique_ptr<Staging> SchedulerCore::Stage(const Admission& admission, std::span<const std::byte> inputs) {
  Entry* const entry = static_cast<const CoreAdmission&>(admission).entry();
  int device = -1;
  {
    absl::MutexLock lock(&mutex_);
    // What waits gains nothing by an early copy, and would only hold memory.
    if (queue_.size() > 0) return nullptr;
    const auto work = [this](size_t d) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return states_[d].outstanding + staged_[d];
    };
    for (size_t d = 0; d < states_.size(); ++d) {
      if (states_[d].free_slots == 0 || ((entry->group.devices & sound_devices_) >> d & 1) == 0) continue;
      if (device < 0 || work(d) < work(device)) device = static_cast<int>(d);
    }
    if (device < 0) return nullptr;
    entry->staged_on = device;
    staged_[device] += entry->cost;
  }
  std::unique_ptr<Staging> staging = devices_[device]->Stage(inputs);
  if (staging == nullptr) {
    absl::MutexLock lock(&mutex_);
    Unstage(entry);
  }
  return staging;
}

int SchedulerCore::Unstage(Entry* entry) {
  const int device = std::exchange(entry->staged_on, -1);
  if (device >= 0) staged_[device] -= entry->cost;
  return device;
}

void SchedulerCore::Submit(std::unique_ptr<Job> job, std::unique_ptr<Admission> admission) {
  Entry* const entry = static_cast<CoreAdmission*>(admission.get())->entry();
  job->admission = std::move(admission);
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex_);
    entry->job = std::move(job);
    Enqueue(entry, &outbox);
    Pump();
    WakeTimers();
  }
  Deliver(&outbox);
}

void SchedulerCore::Enqueue(Entry* entry, Outbox* outbox) {
  const absl::Time now = clock_->Now();
  entry->submitted = now;
  if (entry->cancelled) {
    return Finish(entry, absl::CancelledError("the caller is gone"), outbox);
  }
  if (entry->job->deadline <= now) {
    return Finish(entry, absl::DeadlineExceededError("the deadline passed before the request was queued"),
                  outbox);
  }
  if (closed_) {
    return Finish(entry, ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING", "the server stops"),
                  outbox);
  }
  if ((entry->group.devices & sound_devices_) == 0) {
    return Finish(entry,
                  ErrorWithReason(absl::StatusCode::kUnavailable, "DEVICE_FAILED",
                                  "the devices that could run this have failed"),
                  outbox);
  }
  entry->state = EntryState::kWaiting;
  queue_.Push(entry, now);
  if (entry->job->deadline < absl::InfiniteFuture()) {
    timers_.emplace(entry->job->deadline, TimerKind::kDeadline, entry->id);
  }
  if (options_.max_queue_delay > absl::ZeroDuration()) {
    timers_.emplace(now + options_.max_queue_delay, TimerKind::kReady, entry->id);
  }
}

void SchedulerCore::LeaveQueue(Entry* entry) {
  timers_.erase({entry->job->deadline, TimerKind::kDeadline, entry->id});
  timers_.erase({entry->submitted + options_.max_queue_delay, TimerKind::kReady, entry->id});
  --pending_;
}

void SchedulerCore::Finish(Entry* entry, absl::Status status, Outbox* outbox) {
  if (entry->state == EntryState::kWaiting) {
    queue_.Remove(entry);
    LeaveQueue(entry);
  } else if (entry->state == EntryState::kAdmitted) {
    --pending_;
  }
  Unstage(entry);
  entry->state = EntryState::kFinished;
  if (absl::IsCancelled(status)) outbox->dropped.push_back("cancelled");
  if (absl::IsDeadlineExceeded(status)) outbox->dropped.push_back("deadline");
  outbox->finished.push_back({std::move(entry->job), std::move(status)});
}

void SchedulerCore::DropWaiting(const absl::Status& status, Outbox* outbox) {
  for (const auto& [id, entry] : entries_) {
    if (entry->state != EntryState::kWaiting) continue;
    if (!closed_ && (entry->group.devices & sound_devices_) != 0) continue;
    Finish(entry.get(), status, outbox);
  }
}

void SchedulerCore::Deliver(Outbox* outbox) {
  for (const absl::string_view reason : outbox->dropped) observer_->OnDropped(reason);
  for (const auto& [device, fault] : outbox->faults) {
    observer_->OnDeviceFault(devices_[device]->info(), fault);
  }
  for (Finished& f : outbox->finished) {
    f.job->staging.reset();
    // done is moved out first: it may destroy the job that holds it.
    auto done = std::move(f.job->done);
    done(std::move(f.job), std::move(f.status));
  }
}

SchedulerQueue SchedulerCore::queue() const {
  absl::MutexLock lock(&mutex_);
  return {pending_, host_bytes_};
}

void SchedulerCore::Cancel(uint64_t id) {
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(id);
    if (it == entries_.end()) return;
    Entry* const entry = it->second.get();
    entry->cancelled = true;
    if (entry->state != EntryState::kWaiting) return;  // looked at again when it is submitted or has run
    Finish(entry, absl::CancelledError("the caller is gone"), &outbox);
    Pump();  // others may have waited behind it
  }
  Deliver(&outbox);
}

bool SchedulerCore::Drain(absl::Duration limit) {
  const absl::Time until = clock_->Now() + limit;
  Outbox outbox;
  bool drained;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    while (!entries_.empty() && clock_->Now() < until) clock_->WaitUntil(&changed_, &mutex_, until);
    drained = entries_.empty();
    if (!drained) {
      closed_ = true;
      DropWaiting(ErrorWithReason(absl::StatusCode::kUnavailable, "DRAINING",
                                  "the server stops; the time for draining is up"),
                  &outbox);
    }
  }
  Deliver(&outbox);
  return drained;
}

absl::Status SchedulerCore::Health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

std::vector<int> SchedulerCore::BusySlots() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> busy;
  for (const DeviceState& state : states_) {
    busy.push_back(static_cast<int>(state.slots.size()) - state.free_slots);
  }
  return busy;
}

}  // namespace attend::server
