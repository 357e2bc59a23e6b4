// Speed of the CPU kernels: one JSON object a line. cpu_ms is the process's CPU time, all threads: less
// disturbed by what else the machine does than the clock.
//
//   kernels_cpu --kernel flash --dtype fp32 --batch 1 --heads 8 --kv-heads 8 --q-len 1024 --kv-len 1024
//     --dim 64 --causal --threads 1 --rounds 5
//
// With --serve it reads such option lines from standard input and answers each with a line, so that a
// driver can interleave these runs with a peer's.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/call.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/float16.h"

namespace attend {
namespace {

struct Options {
  std::string kernel = "flash", dtype = "fp32";
  int64_t batch = 1, heads = 8, kv_heads = 0, q_len = 1024, kv_len = 0, dim = 64, threads = 1, rounds = 5;
  bool causal = false;
};

Options Parse(const std::vector<std::string>& args) {
  Options o;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& name = args[i];
    if (name == "--causal") {
      o.causal = true;
      continue;
    }
    const std::string value = i + 1 < args.size() ? args[++i] : "";
    const int64_t number = std::atoll(value.c_str());
    if (name == "--kernel") {
      o.kernel = value;
    } else if (name == "--dtype") {
      o.dtype = value;
    } else {
      int64_t* const field = name == "--batch"      ? &o.batch
                             : name == "--heads"    ? &o.heads
                             : name == "--kv-heads" ? &o.kv_heads
                             : name == "--q-len"    ? &o.q_len
                             : name == "--kv-len"   ? &o.kv_len
                             : name == "--dim"      ? &o.dim
                             : name == "--threads"  ? &o.threads
                             : name == "--rounds"   ? &o.rounds
                                                    : nullptr;
      if (field == nullptr) {
        std::cerr << "unknown option " << name << "\n";
        std::exit(2);
      }
      *field = number;
    }
  }
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.kv_len == 0) o.kv_len = o.q_len;
  return o;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

Memory Allocate(int64_t bytes) { return Memory(std::aligned_alloc(64, (bytes + 127) / 64 * 64)); }

Memory Random(int64_t bytes, DataType dtype, uint64_t seed) {
  Memory m = Allocate(bytes);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const int64_t elements = bytes / SizeOf(dtype);
  for (int64_t i = 0; i < elements; ++i) {
    const float x = normal(random);
    if (dtype == DataType::kFp32) {
      static_cast<float*>(m.get())[i] = x;
    } else {
      static_cast<uint16_t*>(m.get())[i] = dtype == DataType::kFp16 ? ToFp16Bits(x) : ToBf16Bits(x);
    }
  }
  return m;
}

nlohmann::json Measure(const Options& o) {
  Call call;
  call.kernel = o.kernel == "naive"    ? Kernel::kNaive
                : o.kernel == "online" ? Kernel::kOnline
                                       : Kernel::kFlash;
  call.dtype = o.dtype == "fp16" ? DataType::kFp16 : o.dtype == "bf16" ? DataType::kBf16 : DataType::kFp32;
  call.batch = o.batch;
  call.q_heads = static_cast<int32_t>(o.heads);
  call.kv_heads = static_cast<int32_t>(o.kv_heads);
  call.q_len = o.q_len;
  call.kv_len = o.kv_len;
  call.head_dim = call.v_head_dim = static_cast<int32_t>(o.dim);
  if (o.causal) call.causal = Causal::kBottomRight;
  const Memory q = Random(call.q_bytes(), call.dtype, 1), k = Random(call.k_bytes(), call.dtype, 2),
               v = Random(call.v_bytes(), call.dtype, 3), out = Allocate(call.out_bytes());
  CallTensors tensors;
  tensors.q = q.get();
  tensors.k = k.get();
  tensors.v = v.get();
  tensors.out = out.get();
  const std::vector<Problem> problems = MakeProblems(call, tensors);
  const Launch launch = MakeLaunch(call, problems);
  cpu::ThreadPool pool(static_cast<int>(o.threads));
  const int64_t workspace_bytes = cpu::WorkspaceBytes(launch, pool.thread_count());
  const Memory workspace = Allocate(workspace_bytes);
  std::vector<double> seconds, cpu_seconds;
  for (int64_t i = 0; i <= o.rounds; ++i) {
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = cpu::Run(launch, workspace.get(), workspace_bytes, pool);
    if (!status.ok()) return {{"error", std::string(status.message())}};
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    if (i == 0) continue;  // it touches memory for the first time
    seconds.push_back(taken.count());
    cpu_seconds.push_back(cpu);
  }
  std::sort(seconds.begin(), seconds.end());
  std::sort(cpu_seconds.begin(), cpu_seconds.end());
  const WorkCount work = CountWork(launch, cpu::FlashTile(launch));
  const double median = seconds[seconds.size() / 2];
  return {{"kernel", o.kernel},
          {"dtype", o.dtype},
          {"batch", o.batch},
          {"heads", o.heads},
          {"kv_heads", o.kv_heads},
          {"q_len", o.q_len},
          {"kv_len", o.kv_len},
          {"dim", o.dim},
          {"causal", o.causal},
          {"threads", o.threads},
          {"instructions", cpu::InstructionSet()},
          {"median_ms", median * 1e3},
          {"best_ms", seconds.front() * 1e3},
          {"cpu_ms", cpu_seconds[cpu_seconds.size() / 2] * 1e3},
          {"gflops_per_cpu", static_cast<double>(work.flops) / cpu_seconds[cpu_seconds.size() / 2] * 1e-9},
          {"workspace_bytes", workspace_bytes}};
}

}  // namespace
}  // namespace attend

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args != std::vector<std::string>{"--serve"}) {
    std::cout << attend::Measure(attend::Parse(args)) << std::endl;
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    args.assign(std::istream_iterator<std::string>(words), {});
    std::cout << attend::Measure(attend::Parse(args)) << std::endl;
  }
  return 0;
}
