// What a scraper sees: names, types and labels as the table has them, right numbers, a text that Prometheus
// itself accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "server/metrics/exposition.h"
#include "server/metrics/metric_table.h"
#include "tests/server/process/fixture.h"

namespace attend::server {
namespace {

using ::testing::HasSubstr;

std::string Scrape(const Server& server) { return HttpGet(server.http_port(), "/metrics"); }

TEST(Metrics, AreThoseOfTheTable) {
  const auto server = StartServer(TestOptions());
  ASSERT_TRUE(Attend(*Connect(*server), MakeRequest(1, 4, 4, 8)).ok());
  const std::string text = Scrape(*server);
  EXPECT_THAT(text, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  std::set<std::string> expected;
  for (const MetricRow& row : MetricTable()) {
    // A null device has no memory to tell of.
    if (std::string(row.name) == "attend_device_memory_bytes") continue;
    // Nor has a server without TLS a certificate.
    if (std::string(row.name) == "attend_tls_certificate_expiry_timestamp_seconds") continue;
    expected.insert(std::string("# TYPE ") + row.name + " " + kTypes[static_cast<size_t>(row.type)]);
  }
  std::set<std::string> served;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) served.insert(line);
  }
  EXPECT_EQ(served, expected);
}

TEST(Metrics, SeriesAreThereBeforeTheFirstCall) {
  const auto server = StartServer(TestOptions());
  for (const char* series :
       {"grpc_server_started_total{grpc_method=\"Attend\",grpc_service=\"attend.v1.AttentionService\","
        "grpc_type=\"unary\"}",
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Attend\","
        "grpc_service=\"attend.v1.AttentionService\",grpc_type=\"unary\"}",
        "attend_request_seconds_count{code=\"OK\",kernel=\"flash\",method=\"Attend\"}",
        "attend_request_seconds_count{code=\"InvalidArgument\",kernel=\"none\",method=\"Attend\"}",
        // From 50 us to 10 s, and from 2 us for stages.
        "attend_request_seconds_bucket{code=\"OK\",kernel=\"flash\",method=\"Attend\",le=\"5e-05\"}",
        "attend_request_seconds_bucket{code=\"OK\",kernel=\"flash\",method=\"Attend\",le=\"10\"}",
        "attend_stage_seconds_bucket{stage=\"kernel\",le=\"2e-06\"}",
        "attend_stage_seconds_count{stage=\"receive\"}", "attend_rejected_total{reason=\"queue_full\"}",
        "attend_rejected_total{reason=\"receive_budget\"}", "attend_rejected_total{reason=\"incomplete\"}",
        "attend_dropped_total{reason=\"cancelled\"}", "attend_timeouts_total{stage=\"send\"}",
        "attend_hbm_bytes_total{direction=\"read\",kernel=\"naive\"}",
        "attend_flops_total{kernel=\"online\"}", "attend_hbm_saved_bytes_total{kernel=\"flash\"}",
        "attend_copy_bytes_total{device=\"null\",direction=\"in\"}",
        "attend_copy_seconds_total{device=\"null\",direction=\"out\"}",
        "attend_slots{device=\"null\",kind=\"busy\"}",
        "attend_wire_bytes_total{direction=\"sent\",path=\"grpc\"}",
        "attend_device_errors_total{device=\"null\"}", "attend_queue_depth", "attend_batch_requests_count"}) {
    EXPECT_EQ(MetricValue(*server, series), 0) << series;
  }
}

TEST(Metrics, CountWhatHappened) {
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  const v1::AttendRequest request = MakeRequest(2, 16, 16, 8);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Attend(*channel, request).ok());
  v1::AttendRequest wrong = request;
  wrong.mutable_k_data()->pop_back();
  ASSERT_FALSE(Attend(*channel, wrong).ok());
  EXPECT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 0; }));
  EXPECT_EQ(
      MetricValue(*server, "attend_request_seconds_count{code=\"OK\",kernel=\"flash\",method=\"Attend\"}"),
      3);
  EXPECT_EQ(
      MetricValue(*server,
                  "attend_request_seconds_count{code=\"InvalidArgument\",kernel=\"none\",method=\"Attend\"}"),
      1);
  EXPECT_EQ(MetricValue(*server, "attend_rejected_total{reason=\"invalid_request\"}"), 1);
  EXPECT_EQ(MetricValue(*server, "attend_stage_seconds_count{stage=\"kernel\"}"), 3);
  EXPECT_EQ(
      MetricValue(
          *server,
          "attend_kernel_seconds_count{device=\"null\",dtype=\"fp32\",head_dim=\"8\",kernel=\"flash\"}"),
      3);
  EXPECT_EQ(MetricValue(*server, "attend_batch_tokens_sum"), 3 * 16);
  EXPECT_EQ(MetricValue(*server, "attend_wire_bytes_total{direction=\"received\",path=\"grpc\"}"),
            static_cast<double>(3 * request.ByteSizeLong() + wrong.ByteSizeLong()));
  EXPECT_GT(MetricValue(*server, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(MetricValue(*server, "process_open_fds"), 3);
}

TEST(Metrics, CountWhatFlashSavesAndTheSlots) {
  ServerOptions options = TestOptions();
  options.device = "cpu";
  const auto server = StartServer(options);
  ASSERT_TRUE(Attend(*Connect(*server), MakeRequest(2, 16, 24, 8)).ok());
  EXPECT_TRUE(Eventually([&] { return MetricValue(*server, "attend_inflight_requests") == 0; }));
  // NAIVE reads the scores, 4 bytes each, five times and writes them three times.
  EXPECT_EQ(MetricValue(*server, "attend_hbm_saved_bytes_total{kernel=\"flash\"}"), 2 * 16 * 24 * 4 * 8);
  EXPECT_EQ(MetricValue(*server, "attend_slots{device=\"cpu\",kind=\"busy\"}"), 0);
  EXPECT_GE(MetricValue(*server, "attend_slots{device=\"cpu\",kind=\"capacity\"}"), 1);
}

// prometheus-cpp's own serializer says the same, but for how a number is written.
TEST(Metrics, TheTextIsThatOfTheLibrary) {
  prometheus::Registry registry;
  auto& gauges = prometheus::BuildGauge().Name("gauge").Help("Some numbers").Register(registry);
  const double values[] = {0,    -0.0,     1,      -3,        0.1,  1.0 / 3,      1e-7,      123456.75,
                           1e15, 1.5e+300, 5e-324, 1LL << 53, 1e20, std::nan(""), -INFINITY, INFINITY};
  for (size_t i = 0; i < std::size(values); ++i) gauges.Add({{"i", std::to_string(i)}}).Set(values[i]);
  gauges.Add({{"a", "quote \" backslash \\ newline \n end"}, {"b", ""}, {"c", "µ"}}).Set(1);
  prometheus::BuildCounter().Name("counter").Help("Calls").Register(registry).Add({}).Increment(1e6 + 0.5);
  auto& histograms = prometheus::BuildHistogram().Name("histogram").Help("Times").Register(registry);
  for (const prometheus::Labels& labels : {prometheus::Labels{}, prometheus::Labels{{"k", "v"}}}) {
    auto& histogram = histograms.Add(labels, BucketBounds(Buckets::kStageSeconds));
    for (const double value : {1e-6, 0.7e-3, 0.123456789, 99.0}) histogram.Observe(value);
  }
  const auto families = registry.Collect();
  std::istringstream expected(prometheus::TextSerializer().Serialize(families));
  std::istringstream text(ExpositionText(families));
  for (std::string want, got; std::getline(expected, want);) {
    ASSERT_TRUE(std::getline(text, got)) << "missing: " << want;
    const size_t want_end = want[0] == '#' ? want.size() : want.rfind(' ');
    EXPECT_EQ(got.substr(0, want_end), want.substr(0, want_end));
    if (want[0] == '#') continue;
    const double want_value = std::strtod(want.c_str() + want_end, nullptr);
    const double got_value = std::strtod(got.c_str() + want_end, nullptr);
    // The library prints 16 digits.
    if (std::isfinite(want_value)) {
      EXPECT_NEAR(got_value, want_value, std::abs(want_value) * 1e-15) << want;
    } else {
      EXPECT_EQ(std::isnan(got_value) ? "nan" : std::to_string(got_value),
                std::isnan(want_value) ? "nan" : std::to_string(want_value));
    }
  }
  std::string more;
  EXPECT_FALSE(std::getline(text, more)) << more;
}

TEST(Metrics, PromtoolFindsNothingWrong) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "ATTEND-SKIPPED: no promtool";
  const auto server = StartServer(TestOptions());
  ASSERT_TRUE(Attend(*Connect(*server), MakeRequest(1, 4, 4, 8)).ok());
  const std::string answer = Scrape(*server);
  const std::string path = ::testing::TempDir() + "/attend-metrics-" + std::to_string(getpid());
  std::ofstream(path) << answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
  std::remove(path.c_str());
}

TEST(Metrics, APrometheusScrapesThem) {
  if (std::system("command -v prometheus >/dev/null") != 0) GTEST_SKIP() << "ATTEND-SKIPPED: no prometheus";
  const auto server = StartServer(TestOptions());
  const auto channel = Connect(*server);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Attend(*channel, MakeRequest(1, 4, 4, 8)).ok());
  std::string folder = ::testing::TempDir() + "/attend-prometheus-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const int port = 20000 + getpid() % 20000;  // Prometheus tells nobody which port 0 became
  std::ofstream(folder + "/prometheus.yml")
      << "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
      << "scrape_configs: [{job_name: attend, static_configs: [{targets: ['127.0.0.1:" << server->http_port()
      << "']}]}]\n";
  const std::string command = "prometheus --config.file=" + folder +
                              "/prometheus.yml --storage.tsdb.path=" + folder +
                              "/data --web.listen-address=127.0.0.1:" + std::to_string(port) + " >" + folder +
                              "/log 2>&1 & echo $! >" + folder + "/pid";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto query = [&](const std::string& expression) {
    return HttpGet(port, "/api/v1/query?query=" + expression);
  };
  EXPECT_TRUE(Eventually([&] { return query("attend_ready").find(",\"1\"]") != std::string::npos; }));
  EXPECT_THAT(query("sum(attend_request_seconds_count)"), HasSubstr(",\"5\"]"));
  EXPECT_THAT(query("up"), HasSubstr(",\"1\"]"));
  EXPECT_EQ(std::system(("kill $(cat " + folder + "/pid); rm -rf " + folder).c_str()), 0);
}

}  // namespace
}  // namespace attend::server
