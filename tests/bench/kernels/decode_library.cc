// Decode behind a C interface for decode_grid.py: one query token for each sequence against its K and V,
// dense or in pages, in device memory.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/dispatch.h"

// Mirrored in decode_grid.py.
struct AttendDecodeCall {
  int32_t dtype;  // attend::DataType
  int32_t q_heads, kv_heads, head_dim;
  int32_t page_tokens;  // 0: dense
  float scale;
  int64_t batch, q_len, kv_len;
  const void* q;      // [batch, q_heads, q_len, head_dim]
  const void *k, *v;  // dense: [batch, kv_heads, kv_len, head_dim]; [pages, tokens, kv_heads, head_dim]
  const int32_t* page_table;  // [batch, ceil(kv_len / page_tokens)]
  void* out;                  // as q
  void *device_workspace, *host_workspace;
  int64_t device_workspace_bytes, host_workspace_bytes;
};

namespace {

using attend::Problem;

const char* Bytes(const void* p) { return static_cast<const char*>(p); }

Problem ProblemOf(const AttendDecodeCall& in, int64_t sequence) {
  const int64_t bytes = attend::SizeOf(static_cast<attend::DataType>(in.dtype));
  Problem p;
  p.q_len = p.q_len_padded = in.q_len;
  p.kv_len = p.kv_len_padded = in.kv_len;
  p.q_heads = in.q_heads;
  p.kv_heads = in.kv_heads;
  p.scale = in.scale;
  p.causal = attend::Causal::kBottomRight;
  const int64_t q_offset = sequence * in.q_heads * in.q_len * in.head_dim * bytes;
  p.q = Bytes(in.q) + q_offset;
  p.out = static_cast<char*>(in.out) + q_offset;
  p.q_strides = p.out_strides = {.token = in.head_dim, .head = in.q_len * in.head_dim};
  if (in.page_tokens == 0) {
    const int64_t kv_offset = sequence * in.kv_heads * in.kv_len * in.head_dim * bytes;
    p.k = Bytes(in.k) + kv_offset;
    p.v = Bytes(in.v) + kv_offset;
    p.k_strides = p.v_strides = {.token = in.head_dim, .head = in.kv_len * in.head_dim};
    return p;
  }
  p.k = in.k;
  p.v = in.v;
  p.k_strides = p.v_strides = {.token = int64_t{in.kv_heads} * in.head_dim, .head = in.head_dim};
  const int64_t pages = (in.kv_len + in.page_tokens - 1) / in.page_tokens;
  p.pages.table = in.page_table + sequence * pages;
  p.pages.tokens = in.page_tokens;
  p.pages.k_page_stride = p.pages.v_page_stride = int64_t{in.page_tokens} * in.kv_heads * in.head_dim;
  return p;
}

const attend::cuda::DeviceProperties& Device() {
  static const attend::cuda::DeviceProperties device = [] {
    attend::cuda::DeviceProperties properties;
    const absl::Status status = attend::cuda::QueryDevice(0, &properties);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return properties;
  }();
  return device;
}

struct DecodeLaunch {
  std::vector<Problem> problems;
  attend::Launch launch;

  explicit DecodeLaunch(const AttendDecodeCall& in) {
    for (int64_t i = 0; i < in.batch; ++i) problems.push_back(ProblemOf(in, i));
    launch.dtype = static_cast<attend::DataType>(in.dtype);
    launch.head_dim = launch.v_head_dim = in.head_dim;
    launch.problems = problems;
  }
};

}  // namespace

extern "C" {

// Workspace that the call needs, in bytes. 0, or 1 with a message on stderr.
int attend_decode_workspace(const AttendDecodeCall* in, const char* variant, int64_t* device_bytes,
                            int64_t* host_bytes) {
  const DecodeLaunch decode(*in);
  const auto need = attend::cuda::WorkspaceNeedForced(decode.launch, Device(), variant);
  if (!need.ok()) {
    std::fprintf(stderr, "%s\n", need.status().ToString().c_str());
    return 1;
  }
  *device_bytes = need->device_bytes;
  *host_bytes = need->host_bytes;
  return 0;
}

// Enqueues the call on the stream. 0, or 1 with a message on stderr.
int attend_decode_enqueue(const AttendDecodeCall* in, const char* variant, void* stream) {
  const DecodeLaunch decode(*in);
  const attend::cuda::Workspace workspace = {.device = in->device_workspace,
                                             .device_bytes = in->device_workspace_bytes,
                                             .host = in->host_workspace,
                                             .host_bytes = in->host_workspace_bytes};
  const absl::Status status =
      attend::cuda::EnqueueForced(decode.launch, Device(), variant, workspace, stream);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
}
