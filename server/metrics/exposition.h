// The text that Prometheus reads.
#ifndef ATTEND_SERVER_METRICS_EXPOSITION_H_
#define ATTEND_SERVER_METRICS_EXPOSITION_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace attend::server {

// Counters, gauges and histograms in the text format, version 0.0.4, series and order as prometheus-cpp's
// TextSerializer has them. That one prints each of some thousand numbers through a locale: most of a scrape.
std::string ExpositionText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_EXPOSITION_H_
