// What a scrape costs: /metrics of a real server all of whose label sets of attend_kernel_seconds (kernel,
// dtype, head_dim) are observed while it is scraped. Prints the sizes and the times of the scrapes, and those
// of /healthz in turn with them: what of it is the machine's, whose cores callers and server keep busy.
//
//   scrape_bench [--label-sets 64] [--scrapes 300]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "attend/client.h"
#include "tests/bench/service/figures.h"
#include "tests/integration/server_metrics.h"
#include "tests/integration/server_process.h"

namespace {

constexpr int kCallers = 2;

// A request for label set n: a kernel, a dtype and a head_dim of its own.
bool CallLabelSet(attend::Client& client, int n) {
  constexpr attend::Kernel kKernels[] = {attend::Kernel::kFlash, attend::Kernel::kNaive,
                                         attend::Kernel::kOnline};
  constexpr attend::DataType kTypes[] = {attend::DataType::kFp32, attend::DataType::kFp16,
                                         attend::DataType::kBf16};
  const int64_t head_dim = 8 * (1 + n / 9);
  const std::vector<float> zeros(static_cast<size_t>(head_dim));
  attend::Request request;
  request.kernel = kKernels[n % 3];
  request.q = {kTypes[n / 3 % 3], {1, 1, 1, head_dim}, zeros.data()};
  request.k = request.v = request.q;
  return client.Attend(request).ok();
}

// One GET, and what it took in milliseconds.
std::string TimedGet(int port, const char* path, std::vector<double>* milliseconds) {
  const absl::Time start = absl::Now();
  std::string text = attend::integration::HttpGet(port, path);
  milliseconds->push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  return text;
}

void PrintTimes(const char* what, std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("%-8s p50 %.2f ms, p99 %.2f ms, longest %.2f ms\n", what,
              attend::bench::Percentile(milliseconds, 0.5), attend::bench::Percentile(milliseconds, 0.99),
              milliseconds.back());
}

int64_t CountLines(const std::string& text, const char* prefix) {
  int64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    count += !line.empty() && line[0] != '#' && absl::StartsWith(line, prefix) ? 1 : 0;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  int label_sets = 64, scrapes = 300;
  CLI::App app("What a scrape of a busy server costs");
  app.add_option("--label-sets", label_sets, "Of attend_kernel_seconds")->check(CLI::Range(1, 9 * 32));
  app.add_option("--scrapes", scrapes, "How many")->check(CLI::Range(1, 1000000));
  CLI11_PARSE(app, argc, argv);

  attend::integration::ServerProcess server({"--device=cpu"});
  const auto client = attend::Client::Create(server.target());
  if (!server.running() || !client.ok()) return 1;
  std::atomic<bool> stop{false}, failed{false};
  std::atomic<int64_t> calls{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      while (!stop) {
        if (!CallLabelSet(**client, static_cast<int>(calls++ % label_sets))) failed = true;
      }
    });
  }
  while (calls < 2 * label_sets) absl::SleepFor(absl::Milliseconds(10));

  std::vector<double> scrape_times, health_times;
  std::string text;
  const int64_t calls_before = calls;
  for (int i = 0; i < scrapes; ++i) {
    text = TimedGet(server.metrics_port(), "/metrics", &scrape_times);
    absl::SleepFor(absl::Milliseconds(10));
    TimedGet(server.metrics_port(), "/healthz", &health_times);
    absl::SleepFor(absl::Milliseconds(10));
  }
  const int64_t calls_during = calls - calls_before;
  stop = true;
  for (std::thread& t : callers) t.join();
  const int64_t busy = CountLines(text, "attend_kernel_seconds_count");
  std::printf(
      "%ld label sets of attend_kernel_seconds, %ld series, %ld bytes; %ld calls between %d scrapes\n",
      static_cast<long>(busy), static_cast<long>(CountLines(text, "")), static_cast<long>(text.size()),
      static_cast<long>(calls_during), scrapes);
  PrintTimes("/metrics", scrape_times);
  PrintTimes("/healthz", health_times);
  return failed || busy != label_sets ? 1 : 0;
}
