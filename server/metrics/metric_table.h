// Every metric of the server, in one table: README.md lists the same rows (a test compares them), and
// the registry serves these names and no others.
#ifndef ATTEND_SERVER_METRICS_METRIC_TABLE_H_
#define ATTEND_SERVER_METRICS_METRIC_TABLE_H_

#include <span>
#include <vector>

namespace attend::server {

enum class MetricType { kCounter, kGauge, kHistogram };
enum class Buckets { kNone, kRequestSeconds, kStageSeconds, kPowersOfTwo };

// Index into the table.
enum class MetricId {
  kGrpcStarted,
  kGrpcHandled,
  kGrpcHandlingSeconds,
  kRequestSeconds,
  kStageSeconds,
  kKernelSeconds,
  kBatchRequests,
  kBatchTokens,
  kBatchLimited,
  kQueueDepth,
  kQueueBytes,
  kInflightRequests,
  kRejected,
  kDropped,
  kTimeouts,
  kReceiveBudgetBytes,
  kReceiveWaiting,
  kPinnedMemoryBytes,
  kDeviceMemoryBytes,
  kDeviceErrors,
  kSlots,
  kCopyBytes,
  kCopySeconds,
  kHbmBytes,
  kHbmSavedBytes,
  kFlops,
  kWireBytes,
  kLogSuppressed,
  kCertificateExpiry,
  kReloadFailures,
  kReady,
  kBuildInfo,
  kProcessCpuSeconds,
  kProcessResidentBytes,
  kProcessVirtualBytes,
  kProcessOpenFds,
  kProcessMaxFds,
  kProcessThreads,
  kProcessStartTime,
  kCount,
};

struct MetricRow {
  const char* name;
  MetricType type;
  const char* labels;  // names with commas, as the README shows them
  Buckets buckets;
  const char* help;
};

std::span<const MetricRow> MetricTable();
const MetricRow& Row(MetricId id);
std::vector<double> BucketBounds(Buckets buckets);

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_METRIC_TABLE_H_
