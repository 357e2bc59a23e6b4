// What a server process says of itself at /metrics.
#ifndef ATTEND_TESTS_INTEGRATION_SERVER_METRICS_H_
#define ATTEND_TESTS_INTEGRATION_SERVER_METRICS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attend::integration {

// The body of an HTTP answer from 127.0.0.1:port; empty where there is none.
std::string HttpGet(int port, absl::string_view path);

// The sum over all series of a metric that have the given labels: `attend_device_memory_bytes{kind="used"}`
// is of all devices. NaN where there is none.
double Metric(int metrics_port, absl::string_view series);

// Waits until the server holds nothing of any request: no call, no queued or pooled byte of host or device,
// no grant. Says what is left where the time is up; empty when nothing is.
std::string WaitUntilIdle(int metrics_port, absl::Duration limit = absl::Seconds(20));

}  // namespace attend::integration

#endif  // ATTEND_TESTS_INTEGRATION_SERVER_METRICS_H_
