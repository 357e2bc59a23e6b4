#include "server/device/call_cost.h"

#include <algorithm>

namespace attend::server {

std::vector<Problem> PlaceholderProblems(const Call& call) {
  alignas(256) static std::byte nothing[256];
  void* const at = nothing;
  std::vector<Problem> problems = MakeProblems(call, {});
  for (Problem& p : problems) {
    p.q = p.k = p.v = p.out = at;
    if (call.bias) p.bias = at;
    if (call.mask) p.mask = static_cast<uint8_t*>(at);
    if (call.alibi_slopes) p.alibi_slopes = static_cast<float*>(at);
    if (call.sinks) p.sinks = static_cast<float*>(at);
    if (call.return_lse) p.lse = static_cast<float*>(at);
    if (call.return_weights || !call.weight_rows.empty()) p.weights = static_cast<float*>(at);
    if (!call.weight_rows.empty()) p.weight_rows = static_cast<int64_t*>(at);
  }
  return problems;
}

double Flops(const Call& call) {
  double pairs = 0;
  for (const Problem& p : MakeProblems(call, {})) pairs += static_cast<double>(VisiblePairs(p));
  return 2.0 * pairs * call.q_heads * (call.head_dim + call.v_head_dim);
}

double ScoreBytes(const Call& call) {
  if (ResolvedKernel(call) == Kernel::kFlash) return 0;
  double pairs = 0;
  for (const Problem& p : MakeProblems(call, {})) pairs += static_cast<double>(p.q_len) * p.kv_len;
  return 4.0 * pairs * call.q_heads;
}

double TensorBytes(const Call& call) {
  double bytes = 0;
  for (const int64_t b :
       {call.q_bytes(), call.k_bytes(), call.v_bytes(), call.bias_bytes(), call.mask_bytes(),
        call.alibi_bytes(), call.sinks_bytes(), call.out_bytes(), call.lse_bytes(), call.weights_bytes()}) {
    bytes += static_cast<double>(b);
  }
  return bytes;
}

int64_t SavedBytes(const Launch& launch, const WorkCount& work, TileShape tile) {
  Launch naive = launch;
  naive.kernel = Kernel::kNaive;
  const WorkCount most = CountWork(naive, tile);
  return most.read_bytes + most.write_bytes - work.read_bytes - work.write_bytes;
}

Kernel ResolvedKernel(const Call& call) { return ResolveKernel(call.kernel, call.return_weights); }

}  // namespace attend::server
