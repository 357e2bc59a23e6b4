#include "tests/bench/service/runtime_load.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/process/server.h"
#include "tests/bench/service/figures.h"

namespace attend::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(server::ServerOptions options, const Call& call,
                                                       int callers) {
  if (auto s = server::ResolveOptions(&options); !s.ok()) return s;
  auto devices = server::MakeDevices(options);
  if (!devices.ok()) return devices.status();
  auto runtime = std::make_unique<Runtime>();
  runtime->call_ = call;
  runtime->devices_ = *std::move(devices);
  server::HostPool* pool = runtime->devices_.pool.get();
  if (auto s = server::WarmUp(runtime->devices_.devices, pool); !s.ok()) return s;
  runtime->scheduler_ = server::Scheduler::Create(server::MakeSchedulerOptions(options),
                                                  std::move(runtime->devices_.devices), /*observer=*/nullptr);
  for (int i = 0; i < callers; ++i) {
    Caller& caller = runtime->callers_.emplace_back();
    auto inputs = pool->Allocate(call.q_bytes() + call.k_bytes() + call.v_bytes());
    if (!inputs.ok()) return inputs.status();
    auto outputs = pool->Allocate(call.out_bytes());
    if (!outputs.ok()) return outputs.status();
    caller.inputs = *std::move(inputs);
    caller.outputs = *std::move(outputs);
    const std::byte* first = runtime->callers_[0].inputs.data();
    if (i == 0) {
      FillHalves({caller.inputs.data(), static_cast<size_t>(caller.inputs.size())}, /*seed=*/1);
    } else {
      std::memcpy(caller.inputs.data(), first, static_cast<size_t>(caller.inputs.size()));
    }
  }
  return runtime;
}

Runtime::~Runtime() {
  if (scheduler_ != nullptr) scheduler_->Drain(absl::Seconds(60));
}

void Runtime::Drive(double seconds, Caller* caller) {
  RuntimeResult& result = caller->result;
  result = {};
  const Clock::time_point start = Clock::now();
  while (Since(start) < seconds) {
    const Clock::time_point sent = Clock::now();
    auto job = std::make_unique<server::Job>();
    job->call = call_;
    job->inputs = std::move(caller->inputs);
    job->outputs = std::move(caller->outputs);
    job->tensors.q = job->inputs.data();
    job->tensors.k = job->inputs.data() + call_.q_bytes();
    job->tensors.v = job->inputs.data() + call_.q_bytes() + call_.k_bytes();
    job->tensors.out = job->outputs.data();
    job->fair_key = absl::StrCat(reinterpret_cast<uintptr_t>(caller));
    absl::Notification ended;
    std::unique_ptr<server::Job> answered;
    job->done = [&](std::unique_ptr<server::Job> back, absl::Status status) {
      answered = std::move(back);
      caller->status = std::move(status);
      ended.Notify();
    };
    auto admission = scheduler_->Admit(call_, job->inputs.size() + job->outputs.size(), {});
    if (!admission.ok()) {
      caller->status = admission.status();
      return;
    }
    scheduler_->Submit(std::move(job), *std::move(admission));
    ended.WaitForNotification();
    caller->inputs = std::move(answered->inputs);
    caller->outputs = std::move(answered->outputs);
    if (!caller->status.ok()) return;
    const server::JobReport& report = answered->report;
    ++result.calls;
    result.seconds = Since(start);
    result.latency.push_back(Since(sent));
    result.queue_s += static_cast<double>(report.queue_ns) * 1e-9;
    result.copy_in_s += static_cast<double>(report.copy_in_ns) * 1e-9;
    result.kernel_s += static_cast<double>(report.kernel_ns) * 1e-9;
    result.copy_out_s += static_cast<double>(report.copy_out_ns) * 1e-9;
    result.batch_requests += static_cast<double>(report.batch_requests);
  }
}

absl::StatusOr<RuntimeResult> Runtime::Run(double seconds) {
  std::vector<std::thread> threads;
  for (Caller& caller : callers_) threads.emplace_back([this, seconds, &caller] { Drive(seconds, &caller); });
  for (std::thread& thread : threads) thread.join();
  RuntimeResult total;
  for (const Caller& caller : callers_) {
    if (!caller.status.ok()) return caller.status;
    const RuntimeResult& part = caller.result;
    total.calls += part.calls;
    total.seconds = std::max(total.seconds, part.seconds);
    total.latency.insert(total.latency.end(), part.latency.begin(), part.latency.end());
    total.queue_s += part.queue_s;
    total.copy_in_s += part.copy_in_s;
    total.kernel_s += part.kernel_s;
    total.copy_out_s += part.copy_out_s;
    total.batch_requests += part.batch_requests;
  }
  std::sort(total.latency.begin(), total.latency.end());
  for (double* sum :
       {&total.queue_s, &total.copy_in_s, &total.kernel_s, &total.copy_out_s, &total.batch_requests}) {
    *sum /= static_cast<double>(std::max<int64_t>(total.calls, 1));
  }
  if (auto s = CheckAnswers(); !s.ok()) return s;
  return total;
}

absl::Status Runtime::CheckAnswers() const {
  const server::HostBlock& first = callers_[0].outputs;
  for (const Caller& caller : callers_) {
    if (std::memcmp(caller.outputs.data(), first.data(), static_cast<size_t>(first.size())) != 0) {
      return absl::InternalError("two callers of the same call have different answers");
    }
  }
  return absl::OkStatus();
}

}  // namespace attend::bench
