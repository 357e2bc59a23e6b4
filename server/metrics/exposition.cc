#include "server/metrics/exposition.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace attend::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Whole numbers below this are exact in a double, and quicker to print as integers.
constexpr double kExactIntegers = 9007199254740992.0;  // 2^53

void AppendNumber(double value, std::string* text) {
  if (!std::isfinite(value)) {
    text->append(std::isnan(value) ? "NaN" : value < 0 ? "-Inf" : "+Inf");
    return;
  }
  char digits[32];
  const bool integer = std::abs(value) < kExactIntegers && value == std::trunc(value);
  const std::to_chars_result end =
      integer ? std::to_chars(std::begin(digits), std::end(digits), static_cast<int64_t>(value))
              : std::to_chars(std::begin(digits), std::end(digits), value, std::chars_format::general);
  text->append(digits, end.ptr);
}

// label="value",label="value"
std::string LabelText(const std::vector<ClientMetric::Label>& labels) {
  std::string text;
  for (const ClientMetric::Label& label : labels) {
    absl::StrAppend(&text, text.empty() ? "" : ",", label.name, "=\"",
                    absl::StrReplaceAll(label.value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
  }
  return text;
}

// Lines of one series; its labels are written out once.
class SeriesWriter {
 public:
  SeriesWriter(const std::string& name, const ClientMetric& metric, std::string* text)
      : name_(name), labels_(LabelText(metric.label)), text_(text) {}

  void Line(absl::string_view suffix, double value) {
    absl::StrAppend(text_, name_, suffix);
    if (!labels_.empty()) absl::StrAppend(text_, "{", labels_, "}");
    End(value);
  }
  void Bucket(double bound, uint64_t count) {
    absl::StrAppend(text_, name_, "_bucket{", labels_, labels_.empty() ? "" : ",", "le=\"");
    AppendNumber(bound, text_);
    text_->append("\"}");
    End(static_cast<double>(count));
  }

 private:
  void End(double value) {
    text_->push_back(' ');
    AppendNumber(value, text_);
    text_->push_back('\n');
  }

  const std::string& name_;
  const std::string labels_;
  std::string* const text_;
};

void AppendHistogram(const ClientMetric::Histogram& histogram, SeriesWriter* writer) {
  writer->Line("_count", static_cast<double>(histogram.sample_count));
  writer->Line("_sum", histogram.sample_sum);
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    writer->Bucket(bucket.upper_bound, bucket.cumulative_count);
  }
}

const char* TypeName(MetricType type) {
  if (type == MetricType::Counter) return "counter";
  return type == MetricType::Histogram ? "histogram" : "gauge";
}

}  // namespace

std::string ExpositionText(const std::vector<MetricFamily>& families) {
  std::string text;
  for (const MetricFamily& family : families) {
    absl::StrAppend(&text, "# HELP ", family.name, " ", family.help, "\n# TYPE ", family.name, " ",
                    TypeName(family.type), "\n");
    for (const ClientMetric& metric : family.metric) {
      SeriesWriter writer(family.name, metric, &text);
      if (family.type == MetricType::Histogram) {
        AppendHistogram(metric.histogram, &writer);
      } else {
        writer.Line("", family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value);
      }
    }
  }
  return text;
}

}  // namespace attend::server
