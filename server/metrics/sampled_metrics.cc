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
  void Add(MetricId id, double value, const std::string& kind = "") {
    const MetricRow& row = Row(id);
    if (families_.empty() || families_.back().name != row.name) {
      const bool counter = row.type == MetricType::kCounter;
      families_.push_back({row.name,
                           row.help,
                           counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
                           {}});
    }
    ClientMetric metric;
    if (!kind.empty()) metric.label.push_back({"kind", kind});
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

}  // namespace

std::vector<MetricFamily> SampledFamilies(const std::optional<Sample>& sample) {
  Families families;
  if (sample) {
    const auto add = [&](MetricId id, int64_t value, const std::string& kind = "") {
      families.Add(id, static_cast<double>(value), kind);
    };
    add(MetricId::kInflightRequests, sample->inflight);
    add(MetricId::kReceiveBudgetBytes, sample->receive_used, "used");
    add(MetricId::kReceiveBudgetBytes, sample->receive_capacity, "capacity");
    add(MetricId::kReceiveWaiting, sample->receive_waiting);
    add(MetricId::kPinnedMemoryBytes, sample->host_used, "used");
    add(MetricId::kPinnedMemoryBytes, sample->host_peak, "peak");
    add(MetricId::kPinnedMemoryBytes, sample->host_capacity, "capacity");
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
