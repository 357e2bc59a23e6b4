#include "tests/integration/server_metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace attend::integration {

std::string HttpGet(int port, absl::string_view path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n");
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  const size_t body = text.find("\r\n\r\n");
  return body == std::string::npos ? "" : text.substr(body + 4);
}

double Metric(int metrics_port, absl::string_view series) {
  const auto labels_of = [](absl::string_view text) {
    const size_t open = text.find('{');
    if (open == absl::string_view::npos) return std::vector<absl::string_view>();
    return std::vector<absl::string_view>(
        absl::StrSplit(text.substr(open + 1, text.rfind('}') - open - 1), ','));
  };
  const absl::string_view name = series.substr(0, series.find('{'));
  const std::vector<absl::string_view> wanted = labels_of(series);
  const std::string text = HttpGet(metrics_port, "/metrics");
  double sum = std::numeric_limits<double>::quiet_NaN();
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t space = line.rfind(' ');
    if (space == absl::string_view::npos || line[0] == '#') continue;
    const absl::string_view sample = line.substr(0, space);
    if (sample.substr(0, sample.find('{')) != name) continue;
    const std::vector<absl::string_view> labels = labels_of(sample);
    const bool all = std::all_of(wanted.begin(), wanted.end(), [&labels](absl::string_view label) {
      return std::find(labels.begin(), labels.end(), label) != labels.end();
    });
    double value = 0;
    if (all && absl::SimpleAtod(line.substr(space + 1), &value)) sum = std::isnan(sum) ? value : sum + value;
  }
  return sum;
}

std::string WaitUntilIdle(int metrics_port, absl::Duration limit) {
  const std::vector<std::string> held = {"attend_inflight_requests",
                                         "attend_queue_depth",
                                         "attend_queue_bytes",
                                         "attend_receive_waiting",
                                         "attend_receive_budget_bytes{kind=\"used\"}",
                                         "attend_pinned_memory_bytes{kind=\"used\"}"};
  // Only a GPU has memory of its own.
  const std::vector<std::string> on_device = {"attend_device_memory_bytes{kind=\"used\"}",
                                              "attend_device_memory_bytes{kind=\"staging_used\"}"};
  const absl::Time end = absl::Now() + limit;
  for (;;) {
    std::string left;
    for (const std::string& series : held) {
      const double value = Metric(metrics_port, series);
      if (value != 0) absl::StrAppend(&left, series, " ", value, "\n");
    }
    for (const std::string& series : on_device) {
      const double value = Metric(metrics_port, series);
      if (value > 0) absl::StrAppend(&left, series, " ", value, "\n");
    }
    if (left.empty() || absl::Now() > end) return left;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

}  // namespace attend::integration
