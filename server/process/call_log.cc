#include "server/process/call_log.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attend::server {
namespace {

constexpr const char* kLayouts[] = {"bhld", "blhd", "packed"};

double Micros(int64_t ns) { return static_cast<double>(ns / 100) / 10.0; }

void AddShape(const CallShape& shape, std::vector<LogField>* fields) {
  fields->push_back({"dtype", std::string(Name(shape.dtype))});
  fields->push_back({"layout", std::string(kLayouts[static_cast<size_t>(shape.layout)])});
  fields->push_back({"shape", absl::StrCat("b", shape.batch, " hq", shape.q_heads, " hkv", shape.kv_heads,
                                           " lq", shape.q_len, " lk", shape.kv_len, " d", shape.head_dim,
                                           " dv", shape.v_head_dim)});
}

}  // namespace

void CallLog::Write(const CallRecord& record, absl::Time now) {
  const bool good = record.code == absl::StatusCode::kOk;
  if (!(good ? good_ : bad_).Take(now)) {
    metrics_->OnLogSuppressed();
    return;
  }
  std::vector<LogField> fields = {{"request_id", record.request_id},
                                  {"code", absl::StatusCodeToString(record.code)},
                                  {"peer", record.peer}};
  if (!record.caller.empty()) fields.push_back({"caller", record.caller});
  if (!record.traceparent.empty()) fields.push_back({"traceparent", record.traceparent});
  if (record.shape) AddShape(*record.shape, &fields);
  if (record.kernel) fields.push_back({"kernel", std::string(Name(*record.kernel))});
  if (!record.device.empty()) fields.push_back({"device", record.device});
  fields.push_back({"request_bytes", record.request_bytes});
  fields.push_back({"response_bytes", record.response_bytes});
  fields.push_back({"total_us", Micros(record.total_ns)});
  fields.push_back({"receive_us", Micros(record.receive_ns)});
  if (record.ran) {
    fields.push_back({"queue_us", Micros(record.queue_ns)});
    fields.push_back({"copy_in_us", Micros(record.copy_in_ns)});
    fields.push_back({"kernel_us", Micros(record.kernel_ns)});
    fields.push_back({"copy_out_us", Micros(record.copy_out_ns)});
    fields.push_back({"batch_requests", record.batch_requests});
  }
  fields.push_back({"reply_us", Micros(record.reply_ns)});
  if (!record.reason.empty()) fields.push_back({"reason", record.reason});
  if (!record.message.empty()) fields.push_back({"error", record.message});
  Log(record.code == absl::StatusCode::kInternal ? LogLevel::kError : LogLevel::kInfo, "call", fields);
}

}  // namespace attend::server
