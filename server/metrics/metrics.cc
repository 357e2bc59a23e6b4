#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "attend_version.h"
#include "server/metrics/exposition.h"
#include "server/metrics/metric_table.h"
#include "server/metrics/sampled_metrics.h"

namespace attend::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

constexpr size_t kCodes = 17;
constexpr const char* kCodeNames[kCodes] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
// Codes that an Attend call can end with; each has a histogram per kernel from the start.
constexpr absl::StatusCode kAttendCodes[] = {absl::StatusCode::kOk,
                                             absl::StatusCode::kCancelled,
                                             absl::StatusCode::kInvalidArgument,
                                             absl::StatusCode::kDeadlineExceeded,
                                             absl::StatusCode::kResourceExhausted,
                                             absl::StatusCode::kInternal,
                                             absl::StatusCode::kUnavailable,
                                             absl::StatusCode::kUnauthenticated};
// Kernels as labels; the last stands for a call that ended before its kernel was known.
constexpr const char* kKernelNames[] = {"naive", "online", "flash", "none"};
constexpr size_t kKernels = std::size(kKernelNames);
constexpr const char* kStageNames[] = {"receive", "queue", "copy_in", "kernel", "copy_out", "reply"};
// Besides the scheduler's own.
constexpr const char* kReasons[] = {"invalid_request", "incomplete", "unimplemented", "pool_full",
                                    "receive_budget",  "calls_full", "watches_full",  "unauthenticated"};
constexpr size_t kReasonsMax = 32;

struct MethodNames {
  const char* service;
  const char* method;
};
constexpr MethodNames kMethods[] = {{"attend.v1.AttentionService", "Attend"},
                                    {"attend.v1.InfoService", "GetServerInfo"}};

size_t KernelIndex(const std::optional<Kernel>& kernel) {
  if (!kernel || *kernel == Kernel::kAuto) return kKernels - 1;
  return static_cast<size_t>(*kernel) - static_cast<size_t>(Kernel::kNaive);
}

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

constexpr size_t kDtypes = 3;
constexpr size_t kHeadDims = kHeadDimMax / kHeadDimMultiple + 1;

// What belongs to one device, found without labels on the way of a request.
struct DeviceSeries {
  std::string name;
  Counter* errors = nullptr;
  Counter *bytes_in = nullptr, *bytes_out = nullptr, *seconds_in = nullptr, *seconds_out = nullptr;
  std::array<std::array<std::array<std::atomic<Histogram*>, kHeadDims>, kDtypes>, kKernels> kernel_seconds{};
};

class PrometheusMetrics final : public Metrics {
 public:
  PrometheusMetrics() {
    AddMethodSeries();
    AddRequestSeries();
    for (const absl::string_view reason : kRejectReasons) Rejected(reason);
    for (const absl::string_view reason : kReasons) Rejected(reason);
    for (const absl::string_view reason : kDropReasons) {
      MakeCounters(MetricId::kDropped).Add({{"reason", std::string(reason)}});
    }
    for (size_t i = 0; i < std::size(kBatchLimits); ++i) {
      batch_limited_[i] =
          &MakeCounters(MetricId::kBatchLimited).Add({{"bound", std::string(kBatchLimits[i])}});
    }
    for (const char* stage : {"grant", "receive", "send"})
      MakeCounters(MetricId::kTimeouts).Add({{"stage", stage}});
    for (const char* files : {"tls", "tokens"})
      MakeCounters(MetricId::kReloadFailures).Add({{"files", files}});
    MakeGauges(MetricId::kBuildInfo).Add({{"version", ATTEND_VERSION}}).Set(1);
  }

  void AddDevices(const std::vector<DeviceInfo>& devices) override {
    for (const DeviceInfo& device : devices) {
      auto& series = devices_.emplace_back(std::make_unique<DeviceSeries>());
      series->name = device.name;
      series->errors = &MakeCounters(MetricId::kDeviceErrors).Add({{"device", device.name}});
      const auto copies = [&](MetricId id, const char* direction) {
        return &MakeCounters(id).Add({{"device", device.name}, {"direction", direction}});
      };
      series->bytes_in = copies(MetricId::kCopyBytes, "in");
      series->bytes_out = copies(MetricId::kCopyBytes, "out");
      series->seconds_in = copies(MetricId::kCopySeconds, "in");
      series->seconds_out = copies(MetricId::kCopySeconds, "out");
    }
  }

  void SetSampler(std::function<Sample()> sampler) override {
    absl::MutexLock lock(&sampler_mutex_);
    sampler_ = std::move(sampler);
  }

  void OnStarted(Method method) override { started_[static_cast<size_t>(method)]->Increment(); }

  void OnHandled(Method method, const CallRecord& record) override {
    const size_t m = static_cast<size_t>(method);
    const size_t code = static_cast<size_t>(record.code);
    handled_[m][code < kCodes ? code : 2]->Increment();
    handling_seconds_[m]->Observe(Seconds(record.total_ns));
    if (method != Method::kAttend) return;
    RequestSeconds(KernelIndex(record.kernel), record.code).Observe(Seconds(record.total_ns));
    received_->Increment(static_cast<double>(record.request_bytes));
    sent_->Increment(static_cast<double>(record.response_bytes));
    if (record.request_bytes > 0) stage_[0]->Observe(Seconds(record.receive_ns));
    if (record.ran) {
      stage_[1]->Observe(Seconds(record.queue_ns));
      stage_[2]->Observe(Seconds(record.copy_in_ns));
      stage_[3]->Observe(Seconds(record.kernel_ns));
      stage_[4]->Observe(Seconds(record.copy_out_ns));
      stage_[5]->Observe(Seconds(record.reply_ns));
    }
  }

  void OnTimeout(absl::string_view stage) override {
    MakeCounters(MetricId::kTimeouts).Add({{"stage", std::string(stage)}}).Increment();
  }
  void OnLogSuppressed() override { log_suppressed_->Increment(); }

  void OnReloadFailed(absl::string_view files) override {
    MakeCounters(MetricId::kReloadFailures).Add({{"files", std::string(files)}}).Increment();
  }

  void OnRejected(absl::string_view reason) override { Rejected(reason).Increment(); }
  void OnDropped(absl::string_view reason) override {
    MakeCounters(MetricId::kDropped).Add({{"reason", std::string(reason)}}).Increment();
  }

  void OnBatchLimited(absl::string_view limit) override {
    const auto* const found = std::find(std::begin(kBatchLimits), std::end(kBatchLimits), limit);
    batch_limited_[static_cast<size_t>(found - std::begin(kBatchLimits))]->Increment();
  }

  void OnBatch(const DeviceInfo& device, const Launch& launch, int64_t requests, int64_t tokens,
               const BatchResult& result) override {
    batch_requests_->Observe(static_cast<double>(requests));
    batch_tokens_->Observe(static_cast<double>(tokens));
    DeviceSeries* const series = SeriesOf(device);
    KernelSeconds(series, launch).Observe(Seconds(result.kernel_ns));
    series->bytes_in->Increment(static_cast<double>(result.copy_in_bytes));
    series->bytes_out->Increment(static_cast<double>(result.copy_out_bytes));
    series->seconds_in->Increment(Seconds(result.copying_in_ns));
    series->seconds_out->Increment(Seconds(result.copy_out_ns));
    WorkCount work;
    int64_t saved = 0;
    bool failed = false;
    for (const ItemResult& item : result.items) {
      work += item.work;
      saved += item.saved_bytes;
      failed = failed || !item.status.ok();
    }
    const size_t k = KernelIndex(launch.kernel);
    hbm_read_[k]->Increment(static_cast<double>(work.read_bytes));
    hbm_write_[k]->Increment(static_cast<double>(work.write_bytes));
    flops_[k]->Increment(static_cast<double>(work.flops));
    saved_[k]->Increment(static_cast<double>(saved));
    if (failed) series->errors->Increment();
  }

  void OnDeviceFault(const DeviceInfo& device, const absl::Status&) override {
    SeriesOf(device)->errors->Increment();
  }

  std::string Text() const override {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    std::optional<Sample> sample;
    {
      absl::MutexLock lock(&sampler_mutex_);
      if (sampler_) sample = sampler_();
    }
    for (prometheus::MetricFamily& family : SampledFamilies(sample)) families.push_back(std::move(family));
    return ExpositionText(families);
  }

 private:
  // The family of a row. Asked for again, the registry gives the same one.
  Family<Counter>& MakeCounters(MetricId id) {
    return prometheus::BuildCounter().Name(Row(id).name).Help(Row(id).help).Register(registry_);
  }
  Family<Gauge>& MakeGauges(MetricId id) {
    return prometheus::BuildGauge().Name(Row(id).name).Help(Row(id).help).Register(registry_);
  }
  Family<Histogram>& MakeHistograms(MetricId id) {
    return prometheus::BuildHistogram().Name(Row(id).name).Help(Row(id).help).Register(registry_);
  }
  Histogram* MakeHistogram(MetricId id, const Labels& labels = {}) {
    return &MakeHistograms(id).Add(labels, BucketBounds(Row(id).buckets));
  }

  void AddMethodSeries() {
    for (size_t m = 0; m < std::size(kMethods); ++m) {
      Labels labels = {
          {"grpc_type", "unary"}, {"grpc_service", kMethods[m].service}, {"grpc_method", kMethods[m].method}};
      started_[m] = &MakeCounters(MetricId::kGrpcStarted).Add(labels);
      handling_seconds_[m] = MakeHistogram(MetricId::kGrpcHandlingSeconds, labels);
      for (size_t code = 0; code < kCodes; ++code) {
        labels["grpc_code"] = kCodeNames[code];
        handled_[m][code] = &MakeCounters(MetricId::kGrpcHandled).Add(labels);
      }
    }
  }

  void AddRequestSeries() {
    for (size_t k = 0; k < kKernels; ++k) {
      for (const absl::StatusCode code : kAttendCodes) RequestSeconds(k, code);
      const std::string kernel = kKernelNames[k];
      if (kernel == "none") continue;
      hbm_read_[k] = &MakeCounters(MetricId::kHbmBytes).Add({{"kernel", kernel}, {"direction", "read"}});
      hbm_write_[k] = &MakeCounters(MetricId::kHbmBytes).Add({{"kernel", kernel}, {"direction", "write"}});
      flops_[k] = &MakeCounters(MetricId::kFlops).Add({{"kernel", kernel}});
      saved_[k] = &MakeCounters(MetricId::kHbmSavedBytes).Add({{"kernel", kernel}});
    }
    for (size_t s = 0; s < std::size(kStageNames); ++s) {
      stage_[s] = MakeHistogram(MetricId::kStageSeconds, {{"stage", kStageNames[s]}});
    }
    received_ = &MakeCounters(MetricId::kWireBytes).Add({{"direction", "received"}, {"path", "grpc"}});
    sent_ = &MakeCounters(MetricId::kWireBytes).Add({{"direction", "sent"}, {"path", "grpc"}});
    log_suppressed_ = &MakeCounters(MetricId::kLogSuppressed).Add({});
    batch_requests_ = MakeHistogram(MetricId::kBatchRequests);
    batch_tokens_ = MakeHistogram(MetricId::kBatchTokens);
  }

  // A code that has no series yet is unexpected, and rare enough to be looked up by its labels.
  Histogram& RequestSeconds(size_t kernel, absl::StatusCode code) {
    const size_t c = static_cast<size_t>(code) < kCodes ? static_cast<size_t>(code) : 2;
    Histogram* known = request_seconds_[kernel][c].load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    known = MakeHistogram(MetricId::kRequestSeconds,
                          {{"method", "Attend"}, {"kernel", kKernelNames[kernel]}, {"code", kCodeNames[c]}});
    request_seconds_[kernel][c].store(known, std::memory_order_release);
    return *known;
  }

  // AddDevices has named every device that runs anything.
  DeviceSeries* SeriesOf(const DeviceInfo& device) {
    for (const auto& series : devices_) {
      if (series->name == device.name) return series.get();
    }
    return devices_.front().get();
  }

  Histogram& KernelSeconds(DeviceSeries* series, const Launch& launch) {
    const size_t head_dim =
        std::min<size_t>(kHeadDims - 1, static_cast<size_t>(launch.head_dim / kHeadDimMultiple));
    auto& slot =
        series->kernel_seconds[KernelIndex(launch.kernel)][static_cast<size_t>(launch.dtype)][head_dim];
    Histogram* known = slot.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    known = MakeHistogram(MetricId::kKernelSeconds, {{"kernel", std::string(Name(launch.kernel))},
                                                     {"dtype", std::string(Name(launch.dtype))},
                                                     {"head_dim", absl::StrCat(launch.head_dim)},
                                                     {"device", series->name}});
    slot.store(known, std::memory_order_release);
    return *known;
  }

  Counter& Rejected(absl::string_view reason) {
    absl::MutexLock lock(&mutex_);
    std::string label = reason.empty() ? "other" : std::string(reason);
    if (reasons_.size() >= kReasonsMax && reasons_.count(label) == 0) label = "other";
    Counter*& counter = reasons_[label];
    if (counter == nullptr) counter = &MakeCounters(MetricId::kRejected).Add({{"reason", label}});
    return *counter;
  }

  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
  // Apart from the other: the sampler takes locks under which calls are rejected and counted.
  mutable absl::Mutex sampler_mutex_;
  std::function<Sample()> sampler_ ABSL_GUARDED_BY(sampler_mutex_);
  absl::Mutex mutex_;
  std::map<std::string, Counter*> reasons_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::unique_ptr<DeviceSeries>> devices_;  // set once, before calls come
  std::array<Counter*, std::size(kMethods)> started_{};
  std::array<std::array<Counter*, kCodes>, std::size(kMethods)> handled_{};
  std::array<Histogram*, std::size(kMethods)> handling_seconds_{};
  std::array<std::array<std::atomic<Histogram*>, kCodes>, kKernels> request_seconds_{};
  std::array<Histogram*, std::size(kStageNames)> stage_{};
  std::array<Counter*, kKernels> hbm_read_{}, hbm_write_{}, flops_{}, saved_{};
  Counter* received_ = nullptr;
  Counter* sent_ = nullptr;
  Counter* log_suppressed_ = nullptr;
  Histogram* batch_requests_ = nullptr;
  Histogram* batch_tokens_ = nullptr;
  std::array<Counter*, std::size(kBatchLimits)> batch_limited_{};
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create() { return std::make_unique<PrometheusMetrics>(); }

}  // namespace attend::server
