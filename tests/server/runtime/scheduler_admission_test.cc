// Bounds: exact, under threads, and named in what they refuse.
#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "tests/server/runtime/fake_device.h"

namespace attend::server {
namespace {

using testing::HasSubstr;

TEST(Admission, NamesTheLimitOfWhatCanNeverRun) {
  FakeDeviceControl control;
  RecordingObserver observer;
  SchedulerOptions options;
  options.queue_bytes_max = 5000;
  const auto scheduler = MakeScheduler(options, &control, {}, &observer);

  const absl::Status device = scheduler->Admit(FakeCall(1, 1, 1001), 0, {}).status();
  EXPECT_EQ(device.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetReason(device), "REQUEST_TOO_LARGE");
  EXPECT_THAT(std::string(device.message()), HasSubstr("1000"));

  const absl::Status host = scheduler->Admit(FakeCall(), 5001, {}).status();
  EXPECT_EQ(host.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(host.message()), HasSubstr("5000"));

  Call call = FakeCall();
  call.head_dim = 8;
  const absl::Status unsupported = scheduler->Admit(call, 0, {}).status();
  EXPECT_EQ(unsupported.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetReason(unsupported), "UNSUPPORTED");

  EXPECT_EQ(observer.count("request_too_large"), 2);
  EXPECT_EQ(observer.count("unsupported"), 1);
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(1)));
}

TEST(Admission, CountsWhatIsAdmittedAndNotRunning) {
  FakeDeviceControl control;
  Answers answers;
  SchedulerOptions options;
  options.queue_requests_max = 2;
  const auto scheduler = MakeScheduler(options, &control, {}, nullptr);

  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"running"}).ok());
  auto held = scheduler->Admit(FakeCall(), 0, {});  // admitted, never submitted
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(SubmitFake(*scheduler, answers, {"waiting"}).ok());
  EXPECT_EQ(scheduler->queue().requests, 2);
  const absl::Status full = scheduler->Admit(FakeCall(), 0, {}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetReason(full), "QUEUE_FULL");
  EXPECT_GT(GetRetryDelay(full).value_or(absl::ZeroDuration()), absl::ZeroDuration());

  held->reset();
  EXPECT_EQ(scheduler->queue().requests, 1);
  EXPECT_TRUE(scheduler->Admit(FakeCall(), 0, {}).ok());
  control.Complete();
  control.Complete();
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(1)));
  EXPECT_EQ(scheduler->queue().requests, 0);
}

TEST(Admission, HostBytesCountUntilTheFinishedJobIsDestroyed) {
  FakeDeviceControl control;
  SchedulerOptions options;
  options.queue_bytes_max = 100;
  FakeDeviceOptions device;
  device.at_once = true;
  const auto scheduler = MakeScheduler(options, &control, device, nullptr);

  std::unique_ptr<Job> finished;
  auto admission = scheduler->Admit(FakeCall(), 100, {});
  ASSERT_TRUE(admission.ok());
  auto job = std::make_unique<Job>();
  job->call = FakeCall();
  job->done = [&finished](std::unique_ptr<Job> j, absl::Status) { finished = std::move(j); };
  scheduler->Submit(std::move(job), *std::move(admission));
  ASSERT_NE(finished, nullptr);
  EXPECT_EQ(GetReason(scheduler->Admit(FakeCall(), 1, {}).status()), "QUEUE_BYTES_FULL");
  finished.reset();
  EXPECT_TRUE(scheduler->Admit(FakeCall(), 100, {}).ok());
  EXPECT_EQ(scheduler->queue().host_bytes, 0);
}

TEST(Admission, OutlivesTheScheduler) {
  FakeDeviceControl control;
  auto scheduler = MakeScheduler({}, &control, {}, nullptr);
  auto admission = scheduler->Admit(FakeCall(), 7, {});
  ASSERT_TRUE(admission.ok());
  EXPECT_FALSE(scheduler->Drain(absl::ZeroDuration()));
  scheduler.reset();
  admission->reset();
}

// S8: with many threads at the gate, exactly as many as the bounds allow are inside, never one more; and
// device bytes of what runs together stay within the device's.
TEST(Admission, BoundsAreExactUnderThreads) {
  constexpr int kThreads = 6, kRounds = 400;
  constexpr int64_t kRequestsMax = 10, kBytesMax = 70;
  FakeDeviceControl control;
  Answers answers;
  SchedulerOptions options;
  options.queue_requests_max = kRequestsMax;
  options.queue_bytes_max = kBytesMax;
  FakeDeviceOptions device;
  device.slots = 3;
  const auto scheduler = MakeScheduler(options, &control, device, nullptr);
  std::atomic<int64_t> submitted{0}, refused{0};
  absl::Mutex most_mutex;
  SchedulerQueue most;
  std::atomic<bool> stop{false};
  std::thread completer([&] {
    while (!stop) {
      if (control.running() > 0) {
        control.Complete();
      } else {
        std::this_thread::yield();
      }
    }
  });
  // What waits and what is held is most just when somebody has come in.
  const auto look = [&] {
    const SchedulerQueue queue = scheduler->queue();
    absl::MutexLock lock(&most_mutex);
    most.requests = std::max(most.requests, queue.requests);
    most.host_bytes = std::max(most.host_bytes, queue.host_bytes);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        FakeJob job;
        job.id = std::to_string(t) + "." + std::to_string(i);
        job.call = FakeCall(1, 1, 100 + i % 700);
        job.host_bytes = 1 + i % 9;
        job.fair_key = std::to_string(t);
        ++(SubmitFake(*scheduler, answers, job, look).ok() ? submitted : refused);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(60)));
  stop = true;
  completer.join();
  EXPECT_EQ(answers.size(), submitted);
  EXPECT_EQ(submitted + refused, kThreads * kRounds);
  EXPECT_GT(most.requests, 0);
  EXPECT_LE(most.requests, kRequestsMax);
  EXPECT_GT(most.host_bytes, 0);
  EXPECT_LE(most.host_bytes, kBytesMax);
  EXPECT_LE(control.peak_device_bytes(), 1000);
  EXPECT_EQ(scheduler->queue().requests, 0);
  EXPECT_EQ(scheduler->queue().host_bytes, 0);
}

// All at once, nothing running: the bound is reached exactly.
TEST(Admission, ExactlyAsManyAsTheBoundAllowsGetIn) {
  constexpr int kThreads = 8, kEach = 50;
  FakeDeviceControl control;
  SchedulerOptions options;
  options.queue_requests_max = 123;
  const auto scheduler = MakeScheduler(options, &control, {}, nullptr);
  absl::Mutex mutex;
  std::vector<std::unique_ptr<Admission>> held;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        auto admission = scheduler->Admit(FakeCall(), 1, {});
        absl::MutexLock lock(&mutex);
        if (admission.ok()) held.push_back(*std::move(admission));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(held.size(), 123u);
  held.clear();
  EXPECT_TRUE(scheduler->Drain(absl::Seconds(1)));
}

}  // namespace
}  // namespace attend::server
