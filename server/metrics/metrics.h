// The server's metrics: counts what happens and gives the text that Prometheus reads.
#ifndef ATTEND_SERVER_METRICS_METRICS_H_
#define ATTEND_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/metrics/call_record.h"
#include "server/runtime/scheduler.h"

namespace attend::server {

// The methods with series of their own.
enum class Method { kAttend, kGetServerInfo };

struct DeviceSample {
  std::string device, uuid;
  DeviceMemory memory;
  int busy_slots = 0, slots = 0;
};

// Numbers read when somebody scrapes.
struct Sample {
  int64_t receive_used = 0, receive_capacity = 0, receive_waiting = 0;
  int64_t host_used = 0, host_peak = 0, host_capacity = 0;
  int64_t inflight = 0;
  int64_t queue_requests = 0, queue_bytes = 0;
  bool ready = false;
  std::optional<absl::Time> certificate_expiry;  // unset: no TLS
  std::vector<DeviceSample> devices;
};

// Thread-safe. All series but those of attend_kernel_seconds (by kernel, dtype, head_dim and device, so
// bounded) and of reasons exist from the start.
class Metrics : public SchedulerObserver {
 public:
  static std::unique_ptr<Metrics> Create();

  // Series of these devices; once, before calls come.
  virtual void AddDevices(const std::vector<DeviceInfo>& devices) = 0;
  // Where gauges come from. Cleared (with an empty function) before what it reads goes away.
  virtual void SetSampler(std::function<Sample()> sampler) = 0;

  virtual void OnStarted(Method method) = 0;
  virtual void OnHandled(Method method, const CallRecord& record) = 0;
  virtual void OnTimeout(absl::string_view stage) = 0;  // "grant", "receive", "send"
  virtual void OnLogSuppressed() = 0;
  virtual void OnReloadFailed(absl::string_view files) = 0;  // "tls", "tokens"

  // The text format of Prometheus, version 0.0.4.
  virtual std::string Text() const = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_METRICS_METRICS_H_
