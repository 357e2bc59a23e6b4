// Metrics that are read when somebody scrapes, not counted as things happen.
#ifndef ATTEND_SERVER_METRICS_SAMPLED_METRICS_H_
#define ATTEND_SERVER_METRICS_SAMPLED_METRICS_H_

#include <prometheus/metric_family.h>

#include <optional>
#include <vector>

#include "server/metrics/metrics.h"

namespace attend::server {

// The families of a sample (none while there is no sampler) and of the process.
std::vector<prometheus::MetricFamily> SampledFamilies(const std::optional<Sample>& sample);

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_SAMPLED_METRICS_H_
