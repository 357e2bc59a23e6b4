#include "client/cli/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/table.h"

namespace attend::cli {
namespace {

std::string Text(absl::string_view text) { return std::string(text); }

std::vector<std::string> Names(const std::vector<DataType>& dtypes) {
  std::vector<std::string> names;
  names.reserve(dtypes.size());
  for (const DataType dtype : dtypes) names.push_back(Text(Name(dtype)));
  return names;
}

}  // namespace

nlohmann::ordered_json ToJson(const Report& r) {
  return {{"kernel", Text(Name(r.kernel))},
          {"device", r.device},
          {"flops", r.flops},
          {"hbm_read_bytes", r.hbm_read_bytes},
          {"hbm_write_bytes", r.hbm_write_bytes},
          {"tile_bytes", r.tile_bytes},
          {"corrections", r.corrections},
          {"correction_flops", r.correction_flops},
          {"queue_ns", r.queue_ns},
          {"copy_in_ns", r.copy_in_ns},
          {"kernel_ns", r.kernel_ns},
          {"copy_out_ns", r.copy_out_ns},
          {"batch_requests", r.batch_requests}};
}

nlohmann::ordered_json ToJson(const ServerInfo& info) {
  auto devices = nlohmann::ordered_json::array();
  for (const auto& d : info.devices) {
    devices.push_back({{"name", d.name},
                       {"kind", d.kind},
                       {"model", d.model},
                       {"uuid", d.uuid},
                       {"memory_bytes", d.memory_bytes},
                       {"slots", d.slots}});
  }
  auto kernels = nlohmann::ordered_json::array();
  for (const auto& k : info.kernels) {
    kernels.push_back({{"kernel", Text(Name(k.kernel))},
                       {"dtypes", Names(k.dtypes)},
                       {"head_dim_multiple", k.head_dim_multiple},
                       {"head_dim_max", k.head_dim_max},
                       {"all_weights", k.all_weights}});
  }
  const auto& l = info.limits;
  return {{"version", info.version},
          {"devices", devices},
          {"kernels", kernels},
          {"limits",
           {{"request_bytes_max", l.request_bytes_max},
            {"response_bytes_max", l.response_bytes_max},
            {"queue_requests_max", l.queue_requests_max},
            {"host_bytes_max", l.host_bytes_max},
            {"device_bytes_max", l.device_bytes_max},
            {"batch_requests_max", l.batch_requests_max}}}};
}

std::string ToText(const Report& r) {
  return absl::StrFormat(
      "kernel %s on %s, %s of work in %s (queue %s, copy in %s, copy out %s, %d in the launch)\n"
      "memory read %s, written %s; tiles read %s; %d corrections (%.3g FLOP)\n",
      Text(Name(r.kernel)), r.device, absl::StrFormat("%.3g FLOP", static_cast<double>(r.flops)),
      Seconds(static_cast<double>(r.kernel_ns) * 1e-9), Seconds(static_cast<double>(r.queue_ns) * 1e-9),
      Seconds(static_cast<double>(r.copy_in_ns) * 1e-9), Seconds(static_cast<double>(r.copy_out_ns) * 1e-9),
      r.batch_requests, Bytes(static_cast<double>(r.hbm_read_bytes)),
      Bytes(static_cast<double>(r.hbm_write_bytes)), Bytes(static_cast<double>(r.tile_bytes)), r.corrections,
      static_cast<double>(r.correction_flops));
}

std::string ToText(const ServerInfo& info) {
  std::string text = absl::StrCat("attend-server ", info.version, "\n\n");
  Table devices({"device", "kind", "model", "memory", "slots", "uuid"});
  for (const auto& d : info.devices) {
    devices.Add({d.name, d.kind, d.model,
                 d.memory_bytes > 0 ? Bytes(static_cast<double>(d.memory_bytes)) : "", absl::StrCat(d.slots),
                 d.uuid});
  }
  Table kernels({"kernel", "dtypes", "head_dim", "all weights"});
  for (const auto& k : info.kernels) {
    kernels.Add({Text(Name(k.kernel)), absl::StrJoin(Names(k.dtypes), " "),
                 absl::StrCat("multiples of ", k.head_dim_multiple, " up to ", k.head_dim_max),
                 k.all_weights ? "yes" : "no"});
  }
  const auto& l = info.limits;
  Table limits({"limit", "value"});
  limits.Add({"one request", SizeText(l.request_bytes_max)});
  limits.Add({"one reply", SizeText(l.response_bytes_max)});
  limits.Add({"requests that wait", absl::StrCat(l.queue_requests_max)});
  limits.Add({"tensors in host memory, of all requests", SizeText(l.host_bytes_max)});
  limits.Add({"device memory of one request", SizeText(l.device_bytes_max)});
  limits.Add({"requests in a launch", absl::StrCat(l.batch_requests_max)});
  return absl::StrCat(text, devices.ToString(), "\n", kernels.ToString(), "\n", limits.ToString());
}

}  // namespace attend::cli
