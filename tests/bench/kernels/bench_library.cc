// The kernels behind a C interface, so that a Python driver can run them beside its own in one process, on
// tensors and a stream of its own. Device memory in, device memory out.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/call.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/dispatch.h"

// A call on dense tensors; mirrored in attend_kernels.py.
struct AttendBenchCall {
  int32_t dtype;   // attend::DataType
  int32_t kernel;  // attend::Kernel
  int32_t layout;  // attend::Layout
  int32_t causal;  // attend::Causal
  int32_t partial;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  float scale, softcap;
  int64_t batch, q_len, kv_len;
  int64_t window_left, window_right;  // -1: unbounded
  const int64_t* q_lengths;           // host, [batch]; null: all q_len
  const int64_t* kv_lengths;
  const void *q, *k, *v;
  void* out;
  float* lse;  // null: not wanted
  const float* sinks;
  const float* alibi_slopes;
  void *device_workspace, *host_workspace;
  int64_t workspace_bytes;  // of each
};

namespace {

attend::Call MakeCall(const AttendBenchCall& in) {
  attend::Call call;
  call.dtype = static_cast<attend::DataType>(in.dtype);
  call.kernel = static_cast<attend::Kernel>(in.kernel);
  call.layout = static_cast<attend::Layout>(in.layout);
  call.causal = static_cast<attend::Causal>(in.causal);
  call.q_heads = in.q_heads;
  call.kv_heads = in.kv_heads;
  call.head_dim = in.head_dim;
  call.v_head_dim = in.v_head_dim;
  call.scale = in.scale;
  call.softcap = in.softcap;
  call.batch = in.batch;
  call.q_len = in.q_len;
  call.kv_len = in.kv_len;
  call.window_left = in.window_left;
  call.window_right = in.window_right;
  if (in.q_lengths != nullptr) call.q_lengths.assign(in.q_lengths, in.q_lengths + in.batch);
  if (in.kv_lengths != nullptr) call.kv_lengths.assign(in.kv_lengths, in.kv_lengths + in.batch);
  call.alibi_slopes = in.alibi_slopes != nullptr;
  call.sinks = in.sinks != nullptr;
  call.return_lse = in.lse != nullptr;
  return call;
}

}  // namespace

extern "C" {

// Enqueues the call on the stream with the named variant, or the one that dispatch picks where the name is
// empty. 0, or 1 with a message on stderr. Not for several threads at once.
int attend_bench_enqueue(const AttendBenchCall* in, const char* variant, void* stream) {
  static const attend::cuda::DeviceProperties device = [] {
    attend::cuda::DeviceProperties properties;
    if (const absl::Status status = attend::cuda::QueryDevice(0, &properties); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
    }
    return properties;
  }();
  const attend::CallTensors tensors = {.q = in->q,
                                       .k = in->k,
                                       .v = in->v,
                                       .alibi_slopes = in->alibi_slopes,
                                       .sinks = in->sinks,
                                       .out = in->out,
                                       .lse = in->lse};
  const attend::Call call = MakeCall(*in);
  const std::vector<attend::Problem> problems = attend::MakeProblems(call, tensors);
  attend::Launch launch = attend::MakeLaunch(call, problems);
  launch.partial = in->partial != 0;
  const attend::cuda::Workspace workspace = {.device = in->device_workspace,
                                             .device_bytes = in->workspace_bytes,
                                             .host = in->host_workspace,
                                             .host_bytes = in->workspace_bytes};
  const absl::Status status = attend::cuda::EnqueueForced(launch, device, variant, workspace, stream);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
}
