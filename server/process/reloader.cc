#include "server/process/reloader.h"

#include <utility>

#include "server/process/log.h"

namespace attend::server {

Reloader::Reloader(std::vector<Source> sources, absl::Duration interval, Metrics* metrics)
    : sources_(std::move(sources)), interval_(interval), metrics_(metrics) {
  if (!sources_.empty() && interval_ > absl::ZeroDuration()) thread_ = std::thread([this] { Run(); });
}

Reloader::~Reloader() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Reloader::Run() {
  std::vector<std::string> errors(sources_.size());  // of the last time; empty: none
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), interval_)) return;
    }
    for (size_t i = 0; i < sources_.size(); ++i) {
      const absl::StatusOr<bool> taken = sources_[i].reload();
      const std::string error(taken.status().message());
      if (!taken.ok()) {
        metrics_->OnReloadFailed(sources_[i].files);
        if (error != errors[i]) {
          Log(LogLevel::kError, "cannot reload; what was loaded before stays in force",
              {{"files", sources_[i].files}, {"error", error}});
        }
      } else if (*taken) {
        Log(LogLevel::kInfo, "reloaded", {{"files", sources_[i].files}});
      }
      errors[i] = error;
    }
  }
}

}  // namespace attend::server
