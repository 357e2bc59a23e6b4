#include "client/cli/compare.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Figure {
  std::string name;
  double value = 0;
  bool more_is_better = false;
};

void AddLadder(const Json& ladder, std::vector<Figure>* figures) {
  for (const Json& step : ladder.at("steps")) {
    if (step.contains("refused")) continue;
    const std::string name =
        absl::StrFormat("[%d,%d,%d,%d] %s %s: kernel time", ladder.at("batch").get<int64_t>(),
                        ladder.at("heads").get<int64_t>(), step.at("length").get<int64_t>(),
                        ladder.at("head_dim").get<int64_t>(), ladder.at("dtype").get<std::string>(),
                        step.at("kernel").get<std::string>());
    figures->push_back({name, step.at("kernel_s").get<double>(), false});
  }
}

void AddLoad(const std::string& name, const Json& load, std::vector<Figure>* figures) {
  figures->push_back({name + ": calls/s", load.at("calls_per_s").get<double>(), true});
  figures->push_back({name + ": p50", load.at("latency_s").at("p50").get<double>(), false});
}

// Throws nlohmann::json::exception where the JSON has another form.
std::vector<Figure> Figures(const Json& run) {
  std::vector<Figure> figures;
  if (run.is_array()) {
    for (const Json& ladder : run) AddLadder(ladder, &figures);
  } else if (run.contains("rows")) {
    for (const Json& row : run.at("rows")) {
      AddLoad(absl::StrFormat("[%d,%d,%d,%d] x %d", row.at("batch").get<int64_t>(),
                              row.at("heads").get<int64_t>(), row.at("length").get<int64_t>(),
                              row.at("head_dim").get<int64_t>(), row.at("concurrency").get<int64_t>()),
              row, &figures);
    }
  } else {
    AddLoad(absl::StrFormat("%d bytes x %d, rate %g", run.at("request_bytes").get<int64_t>(),
                            run.at("concurrency").get<int64_t>(), run.at("rate").get<double>()),
            run, &figures);
  }
  return figures;
}

std::string Number(double value) { return absl::StrFormat("%.4g", value); }

}  // namespace

absl::StatusOr<std::vector<Change>> CompareRuns(const Json& before, const Json& now, double tolerance) {
  std::vector<Change> changes;
  try {
    std::map<std::string, double> former;
    for (const Figure& figure : Figures(before)) former[figure.name] = figure.value;
    for (const Figure& figure : Figures(now)) {
      const auto found = former.find(figure.name);
      if (found == former.end() || found->second <= 0 || figure.value <= 0) continue;
      Change change = {figure.name, found->second, figure.value, 0, false};
      change.ratio = figure.more_is_better ? change.now / change.before : change.before / change.now;
      change.worse = change.ratio < 1 - tolerance;
      changes.push_back(std::move(change));
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not what `attend bench --json` prints: ", error.what()));
  }
  if (changes.empty()) return absl::InvalidArgumentError("the two runs have no figure in common");
  return changes;
}

bool AnyWorse(const std::vector<Change>& changes) {
  return std::any_of(changes.begin(), changes.end(), [](const Change& c) { return c.worse; });
}

std::string ToText(const std::vector<Change>& changes) {
  Table table({"figure (time in seconds)", "before", "now", "better by", ""});
  for (const Change& c : changes) {
    table.Add({c.figure, Number(c.before), Number(c.now), absl::StrFormat("%.2fx", c.ratio),
               c.worse ? "WORSE" : "ok"});
  }
  return table.ToString();
}

}  // namespace attend::cli
