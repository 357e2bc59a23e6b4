#include "server/metrics/metric_table.h"

#include <cstddef>
#include <iterator>

namespace attend::server {
namespace {

using T = MetricType;
using B = Buckets;

// In the order of MetricId.
constexpr MetricRow kTable[] = {
    {"grpc_server_started_total", T::kCounter, "grpc_type,grpc_service,grpc_method", B::kNone,
     "Calls started on the server"},
    {"grpc_server_handled_total", T::kCounter, "grpc_type,grpc_service,grpc_method,grpc_code", B::kNone,
     "Calls completed on the server"},
    {"grpc_server_handling_seconds", T::kHistogram, "grpc_type,grpc_service,grpc_method", B::kRequestSeconds,
     "Time from a call's headers to its end"},
    {"attend_request_seconds", T::kHistogram, "method,kernel,code", B::kRequestSeconds,
     "Time from a call's headers to its end, by the kernel that ran (none: refused before) and the code"},
    {"attend_stage_seconds", T::kHistogram, "stage", B::kStageSeconds,
     "Time in one stage: receive, queue, copy_in, kernel, copy_out, reply"},
    {"attend_kernel_seconds", T::kHistogram, "kernel,dtype,head_dim,device", B::kStageSeconds,
     "Time of one launch, observed once for all its requests"},
    {"attend_batch_requests", T::kHistogram, "", B::kPowersOfTwo, "Requests in one launch"},
    {"attend_batch_tokens", T::kHistogram, "", B::kPowersOfTwo, "Query tokens in one launch"},
    {"attend_batch_limited_total", T::kCounter, "bound", B::kNone,
     "Launches that a bound kept from taking more of what waited: requests, tokens, bytes, device_memory or "
     "time"},
    {"attend_queue_depth", T::kGauge, "", B::kNone, "Requests that wait for a device"},
    {"attend_queue_bytes", T::kGauge, "", B::kNone,
     "Host bytes of requests that wait, run or are being answered"},
    {"attend_inflight_requests", T::kGauge, "", B::kNone, "Calls in any stage"},
    {"attend_rejected_total", T::kCounter, "reason", B::kNone, "Calls refused, by the error's reason"},
    {"attend_dropped_total", T::kCounter, "reason", B::kNone,
     "Requests dropped from the queue because their caller is gone: cancelled or deadline"},
    {"attend_timeouts_total", T::kCounter, "stage", B::kNone,
     "Calls ended by a time limit: grant, receive or send"},
    {"attend_receive_budget_bytes", T::kGauge, "kind", B::kNone,
     "Bytes of requests being received: used, and the capacity"},
    {"attend_receive_waiting", T::kGauge, "", B::kNone, "Calls held by flow control until bytes are free"},
    {"attend_pinned_memory_bytes", T::kGauge, "kind", B::kNone,
     "Host memory for tensors, pinned where a GPU copies from it: used, peak and capacity"},
    {"attend_device_memory_bytes", T::kGauge, "device,uuid,kind", B::kNone,
     "Memory of a device: total and free; the pool taken at start, its used and peak; staging, taken for "
     "tensors ahead of their batch, staging_used and staging_peak"},
    {"attend_device_errors_total", T::kCounter, "device", B::kNone,
     "Launches of a device in which a request failed, and faults of the device"},
    {"attend_slots", T::kGauge, "device,kind", B::kNone,
     "Batches in flight on a device: busy, and the capacity"},
    {"attend_copy_bytes_total", T::kCounter, "device,direction", B::kNone,
     "Bytes copied to a device (in) and back (out)"},
    {"attend_copy_seconds_total", T::kCounter, "device,direction", B::kNone,
     "Time of these copies; bytes by it are the bandwidth of the copies that ran"},
    {"attend_hbm_bytes_total", T::kCounter, "kernel,direction", B::kNone,
     "Bytes of device memory read and written, by the algorithm's own count"},
    {"attend_hbm_saved_bytes_total", T::kCounter, "kernel", B::kNone,
     "Bytes of device memory that NAIVE would have carried beyond these, by the same count"},
    {"attend_flops_total", T::kCounter, "kernel", B::kNone,
     "Floating-point operations of the two matrix products, by the algorithm's own count"},
    {"attend_wire_bytes_total", T::kCounter, "direction,path", B::kNone, "Message bytes received and sent"},
    {"attend_log_suppressed_total", T::kCounter, "", B::kNone, "Call lines left out of the log under load"},
    {"attend_tls_certificate_expiry_timestamp_seconds", T::kGauge, "", B::kNone,
     "When the certificate in force expires, since the epoch; only with TLS"},
    {"attend_reload_failures_total", T::kCounter, "files", B::kNone,
     "Times that changed files of certificates (tls) or tokens could not be taken"},
    {"attend_ready", T::kGauge, "", B::kNone, "1 while the server takes requests, else 0"},
    {"attend_build_info", T::kGauge, "version", B::kNone, "1, with the version"},
    {"process_cpu_seconds_total", T::kCounter, "", B::kNone, "User and system CPU time"},
    {"process_resident_memory_bytes", T::kGauge, "", B::kNone, "Resident memory"},
    {"process_virtual_memory_bytes", T::kGauge, "", B::kNone, "Virtual memory"},
    {"process_open_fds", T::kGauge, "", B::kNone, "Open file descriptors"},
    {"process_max_fds", T::kGauge, "", B::kNone, "Most file descriptors that may be open"},
    {"process_threads", T::kGauge, "", B::kNone, "Threads"},
    {"process_start_time_seconds", T::kGauge, "", B::kNone, "Start time since the epoch"},
};
static_assert(std::size(kTable) == static_cast<size_t>(MetricId::kCount));

}  // namespace

std::span<const MetricRow> MetricTable() { return kTable; }

const MetricRow& Row(MetricId id) { return kTable[static_cast<size_t>(id)]; }

std::vector<double> BucketBounds(Buckets buckets) {
  switch (buckets) {
    case Buckets::kNone:
      return {};
    case Buckets::kRequestSeconds:  // 50 us to 10 s
      return {50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3,
              50e-3, 0.1,    0.2,    0.5,    1.0,  2.0,  5.0,  10.0};
    case Buckets::kStageSeconds:  // 2 us to 10 s
      return {2e-6,  5e-6,  10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3,
              10e-3, 20e-3, 50e-3, 0.1,   0.2,   0.5,    1.0,    2.0,    5.0,  10.0};
    case Buckets::kPowersOfTwo: {
      std::vector<double> bounds;
      for (double bound = 1; bound <= 1 << 20; bound *= 2) bounds.push_back(bound);
      return bounds;
    }
  }
  return {};
}

}  // namespace attend::server
