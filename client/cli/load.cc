#include "client/cli/load.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

int64_t TensorBytes(const TensorView& view) { return ByteSize(view.dtype, view.shape).value_or(0); }

// Counts answers. Thread-safe.
class Tally {
 public:
  void Sent() {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }

  void Answered(absl::Time intended, bool counted, const absl::StatusOr<Response>& response) {
    const absl::Time now = absl::Now();
    absl::MutexLock lock(&mutex_);
    --in_flight_;
    ++answered_;
    if (!counted) return;
    last_ = std::max(last_, now);
    if (!response.ok()) {
      if (result_.errors.empty()) result_.first_error = Describe(response.status());
      ++result_.errors[absl::StatusCodeToString(response.status().code())];
      return;
    }
    result_.latency_s.push_back(absl::ToDoubleSeconds(now - intended));
    result_.retried += response->attempts > 1 ? 1 : 0;
    result_.response_bytes = static_cast<int64_t>(response->out.bytes().size());
    result_.flops = response->report.flops;
    result_.kernel = std::string(Name(response->report.kernel));
    result_.device = response->report.device;
  }

  void NotSent() {
    absl::MutexLock lock(&mutex_);
    ++result_.not_sent;
  }

  int64_t in_flight() {
    absl::MutexLock lock(&mutex_);
    return in_flight_;
  }
  int64_t answered() {
    absl::MutexLock lock(&mutex_);
    return answered_;
  }

  // Waits until fewer than `limit` calls are in flight, or for the time.
  void AwaitBelow(int64_t limit, absl::Duration at_most) {
    absl::MutexLock lock(&mutex_);
    limit_ = limit;
    mutex_.AwaitWithTimeout(absl::Condition(
                                +[](Tally* t) { return t->in_flight_ < t->limit_; }, this),
                            at_most);
  }

  LoadResult Take(absl::Time first) {
    absl::MutexLock lock(&mutex_);
    std::sort(result_.latency_s.begin(), result_.latency_s.end());
    result_.seconds = std::max(0.0, absl::ToDoubleSeconds(last_ - first));
    return std::move(result_);
  }

 private:
  absl::Mutex mutex_;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t limit_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

LoadResult RunLoad(Client& client, const Request& request, const LoadOptions& options) {
  Tally tally;
  Progress progress;
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> gap(options.rate > 0 ? options.rate : 1);
  const absl::Time begin = absl::Now();
  const absl::Time counted_from = begin + absl::Seconds(options.warmup_s);
  const absl::Time end = counted_from + absl::Seconds(options.duration_s);
  const int64_t in_flight_max = options.rate > 0 ? options.in_flight_max : options.concurrency;
  absl::Time intended = begin;
  absl::Time shown = begin;
  while (true) {
    if (options.rate > 0) {
      intended += absl::Seconds(gap(random));
      if (intended >= end) break;
      absl::SleepFor(intended - absl::Now());
    } else {
      // A closed loop: a caller sends when it has its answer, so it is never late.
      tally.AwaitBelow(in_flight_max, end - absl::Now());
      intended = absl::Now();
      if (intended >= end) break;
    }
    const bool counted = intended >= counted_from;
    if (tally.in_flight() >= in_flight_max) {
      if (counted) tally.NotSent();
      continue;
    }
    tally.Sent();
    client.AttendAsync(request, {}, [&tally, intended, counted](absl::StatusOr<Response> response) {
      tally.Answered(intended, counted, response);
    });
    if (absl::Now() - shown > absl::Milliseconds(200)) {
      shown = absl::Now();
      progress.Show(absl::StrFormat("%.0f s left, %d answered, %d in flight",
                                    absl::ToDoubleSeconds(end - shown), tally.answered(), tally.in_flight()));
    }
  }
  tally.AwaitBelow(1, absl::InfiniteDuration());  // each has a deadline
  LoadResult result = tally.Take(counted_from);
  result.request_bytes = TensorBytes(request.q) + TensorBytes(request.k) + TensorBytes(request.v);
  return result;
}

double LoadResult::Percentile(double p) const {
  if (latency_s.empty()) return std::numeric_limits<double>::quiet_NaN();
  // The smallest value that p percent of the calls did not exceed.
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(latency_s.size())));
  return latency_s[std::clamp<size_t>(rank, 1, latency_s.size()) - 1];
}

nlohmann::ordered_json ToJson(const LoadResult& r, const LoadOptions& options) {
  const double calls = static_cast<double>(r.latency_s.size());
  const double per_s = r.seconds > 0 ? calls / r.seconds : 0;
  nlohmann::ordered_json json = {
      {"concurrency", options.rate > 0 ? 0 : options.concurrency},
      {"rate", options.rate},
      {"kernel", r.kernel},
      {"device", r.device},
      {"seconds", r.seconds},
      {"succeeded", r.latency_s.size()},
      {"errors", r.errors},
      {"first_error", r.first_error},
      {"not_sent", r.not_sent},
      {"retried", r.retried},
      {"calls_per_s", per_s},
      {"request_bytes", r.request_bytes},
      {"response_bytes", r.response_bytes},
      {"bytes_per_s", per_s * static_cast<double>(r.request_bytes + r.response_bytes)},
      {"flops_per_s", per_s * static_cast<double>(r.flops)}};
  for (const double p : {50.0, 90.0, 95.0, 99.0, 99.9, 100.0}) {
    json["latency_s"][p == 100 ? "max" : absl::StrCat("p", p)] = r.Percentile(p);
  }
  return json;
}

std::string ToText(const LoadResult& r) {
  const double per_s = r.seconds > 0 ? static_cast<double>(r.latency_s.size()) / r.seconds : 0;
  std::string text = absl::StrFormat(
      "%d calls in %.1f s: %.1f calls/s, %s/s in, %s/s out, %.1f GFLOP/s", r.latency_s.size(), r.seconds,
      per_s, Bytes(per_s * static_cast<double>(r.request_bytes)),
      Bytes(per_s * static_cast<double>(r.response_bytes)), per_s * static_cast<double>(r.flops) * 1e-9);
  if (!r.latency_s.empty()) absl::StrAppend(&text, " (", r.kernel, " on ", r.device, ")");
  absl::StrAppend(&text, "\n");
  Table latency({"latency", "p50", "p90", "p95", "p99", "p99.9", "max"});
  std::vector<std::string> row = {"from intended send"};
  for (const double p : {50.0, 90.0, 95.0, 99.0, 99.9, 100.0}) {
    row.push_back(r.latency_s.empty() ? "-" : Seconds(r.Percentile(p)));
  }
  latency.Add(std::move(row));
  absl::StrAppend(&text, latency.ToString());
  for (const auto& [code, count] : r.errors)
    absl::StrAppend(&text, "  ", count, " calls ended with ", code, "\n");
  if (!r.first_error.empty()) absl::StrAppend(&text, "  the first: ", r.first_error, "\n");
  if (r.retried > 0) absl::StrAppend(&text, "  ", r.retried, " calls needed more than one attempt\n");
  if (r.not_sent > 0) absl::StrAppend(&text, "  ", r.not_sent, " calls not sent: too many in flight\n");
  return text;
}

}  // namespace attend::cli
