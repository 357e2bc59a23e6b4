#include "server/metrics/sampled_metrics.h"

#include <string>
#include <utility>

#include "server/metrics/metric_table.h"
#include "server/metrics/process_metrics.h"

namespace attend::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

class Families {
 public:
  using Labels = std::vector<ClientMetric::Label>;

  void Add(MetricId id, double value, Labels labels = {}) {
    const MetricRow& row = Row(id);
    if (families_.empty() || families_.back().name != row.name) {
      const bool counter = row.type == MetricType::kCounter;
      families_.push_back({row.name,
                           row.help,
                           counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
                           {}});
    }
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Add(MetricId id, const std::optional<double>& value) {
    if (value) Add(id, *value);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddDeviceMemory(const DeviceSample& device, Families* families) {
  const DeviceMemory& m = device.memory;
  const std::pair<const char*, const std::optional<int64_t>*> kinds[] = {{"total", &m.total},
                                                                         {"free", &m.free},
                                                                         {"pool", &m.pool},
                                                                         {"used", &m.used},
                                                                         {"peak", &m.peak},
                                                                         {"staging", &m.staging},
                                                                         {"staging_used", &m.staging_used},
                                                                         {"staging_peak", &m.staging_peak}};
  for (const auto& [kind, bytes] : kinds) {
    if (!*bytes) continue;  // left out, never 0
    families->Add(MetricId::kDeviceMemoryBytes, static_cast<double>(**bytes),
                  {{"device", device.device}, {"uuid", device.uuid}, {"kind", kind}});
  }
}

}  // namespace

std::vector<MetricFamily> SampledFamilies(const std::optional<Sample>& sample) {
  Families families;
  if (sample) {
    const auto add = [&](MetricId id, int64_t value, const std::string& kind = "") {
      families.Add(id, static_cast<double>(value),
                   kind.empty() ? Families::Labels{} : Families::Labels{{"kind", kind}});
    };
    add(MetricId::kQueueDepth, sample->queue_requests);
    add(MetricId::kQueueBytes, sample->queue_bytes);
    add(MetricId::kInflightRequests, sample->inflight);
    add(MetricId::kReceiveBudgetBytes, sample->receive_used, "used");
    add(MetricId::kReceiveBudgetBytes, sample->receive_capacity, "capacity");
    add(MetricId::kReceiveWaiting, sample->receive_waiting);
    add(MetricId::kPinnedMemoryBytes, sample->host_used, "used");
    add(MetricId::kPinnedMemoryBytes, sample->host_peak, "peak");
    add(MetricId::kPinnedMemoryBytes, sample->host_capacity, "capacity");
    for (const DeviceSample& device : sample->devices) AddDeviceMemory(device, &families);
    for (const DeviceSample& device : sample->devices) {
      families.Add(MetricId::kSlots, device.busy_slots, {{"device", device.device}, {"kind", "busy"}});
      families.Add(MetricId::kSlots, device.slots, {{"device", device.device}, {"kind", "capacity"}});
    }
    if (sample->certificate_expiry) {
      families.Add(MetricId::kCertificateExpiry,
                   static_cast<double>(absl::ToUnixSeconds(*sample->certificate_expiry)));
    }
    add(MetricId::kReady, sample->ready ? 1 : 0);
  }
  const ProcessFigures process = ReadProcessFigures();
  families.Add(MetricId::kProcessCpuSeconds, process.cpu_seconds);
  families.Add(MetricId::kProcessResidentBytes, process.resident_bytes);
  families.Add(MetricId::kProcessVirtualBytes, process.virtual_bytes);
  families.Add(MetricId::kProcessOpenFds, process.open_fds);
  families.Add(MetricId::kProcessMaxFds, process.max_fds);
  families.Add(MetricId::kProcessThreads, process.threads);
  families.Add(MetricId::kProcessStartTime, process.start_time_seconds);
  return families.Take();
}

}  // namespace attend::server
