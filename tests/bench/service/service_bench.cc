// What the service costs over raw gRPC: attend-server with the null device beside raw_echo, the same bytes
// both ways, in one run on one machine. Rounds alternate between the two; figures are medians.
//
//   service_bench ATTEND_SERVER RAW_ECHO [ROUNDS [SECONDS]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attend/v1/attention.pb.h"
#include "tests/bench/service/load.h"
#include "tests/bench/service/server_process.h"

namespace attend::bench {
namespace {

// A request of about these bytes, nearly all of them q, so that the reply is about as large. Wide heads and
// few tokens, as an LLM's layer has.
std::string MakeRequest(int64_t bytes) {
  constexpr int64_t kDim = 64;
  const int64_t kv_len = bytes < 4096 ? 1 : 8;
  const int64_t q_len = std::max<int64_t>(1, bytes / (kDim * 2) - 2 * kv_len);
  v1::AttendRequest request;
  const auto fill = [&](v1::TensorSpec* spec, std::string* data, int64_t len) {
    spec->set_dtype(v1::DATA_TYPE_FP16);
    for (const int64_t size : {int64_t{1}, int64_t{1}, len, kDim}) spec->add_shape(size);
    data->assign(static_cast<size_t>(len * kDim * 2), '\0');
  };
  fill(request.mutable_q(), request.mutable_q_data(), q_len);
  fill(request.mutable_k(), request.mutable_k_data(), kv_len);
  fill(request.mutable_v(), request.mutable_v_data(), kv_len);
  return request.SerializeAsString();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Case {
  const char* name;
  int64_t bytes;
  int connections;
  int in_flight;
};

struct Binaries {
  std::string attend, raw;
};

void Compare(const Binaries& binaries, const Case& c, int rounds, double seconds) {
  Load load;
  load.request = MakeRequest(c.bytes);
  load.connections = c.connections;
  load.in_flight = c.in_flight;
  const ServerProcess attend = ServerProcess::Attend(binaries.attend, {"--device=null"});
  load.target = attend.target();
  load.seconds = 0.3;
  const int64_t reply_bytes = RunLoad(load).reply_bytes;  // warms up, too
  const ServerProcess raw = ServerProcess::RawEcho(binaries.raw, reply_bytes);
  load.target = raw.target();
  RunLoad(load);

  load.seconds = seconds;
  std::vector<double> ours, theirs, ratios, ours_p50, theirs_p50;
  for (int round = 0; round < rounds; ++round) {
    LoadResult results[2];
    for (int i = 0; i < 2; ++i) {
      const int which = (round + i) % 2;  // who goes first alternates
      load.target = which == 0 ? attend.target() : raw.target();
      results[which] = RunLoad(load);
    }
    ours.push_back(results[0].calls_per_second());
    theirs.push_back(results[1].calls_per_second());
    ratios.push_back(ours.back() / theirs.back());
    ours_p50.push_back(results[0].Percentile(0.5));
    theirs_p50.push_back(results[1].Percentile(0.5));
  }
  const double bytes = static_cast<double>(load.request.size()) + static_cast<double>(reply_bytes);
  std::printf("%-24s %10.0f %10.0f %9.2f %9.2f %9.1f %9.1f   %.3f (%.3f to %.3f)\n", c.name, Median(ours),
              Median(theirs), Median(ours) * bytes / 1e9, Median(theirs) * bytes / 1e9,
              Median(ours_p50) * 1e6, Median(theirs_p50) * 1e6, Median(ratios),
              *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()));
  std::fflush(stdout);
}

// Resident memory that one request adds, beyond the pool, which is there to be used.
void Memory(const Binaries& binaries, int64_t bytes) {
  const ServerProcess attend = ServerProcess::Attend(binaries.attend, {"--device=null"});
  Load load;
  load.target = attend.target();
  load.seconds = 0;
  load.request = MakeRequest(1024);
  RunLoad(load);
  const int64_t idle = attend.ResidentBytes();
  load.request = MakeRequest(bytes);
  const int64_t reply_bytes = RunLoad(load).reply_bytes;
  const int64_t pool = static_cast<int64_t>(load.request.size()) + reply_bytes;  // touched now
  attend.ResetPeak();
  RunLoad(load);
  const int64_t growth = attend.PeakBytes() - idle - pool;
  std::printf(
      "one request of %.0f MiB: resident memory grows by %.3f of its bytes (pool of %.0f MiB touched)\n",
      static_cast<double>(bytes) / (1 << 20), static_cast<double>(growth) / static_cast<double>(bytes),
      static_cast<double>(pool) / (1 << 20));
}

}  // namespace
}  // namespace attend::bench

int main(int argc, char** argv) {
  using attend::bench::Case;
  if (argc < 3) {
    std::fprintf(stderr, "usage: service_bench ATTEND_SERVER RAW_ECHO [ROUNDS [SECONDS]]\n");
    return 2;
  }
  const attend::bench::Binaries binaries = {argv[1], argv[2]};
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  const double seconds = argc > 4 ? std::atof(argv[4]) : 1.0;
  std::printf("%-24s %21s %19s %19s   %s\n", "", "calls/s", "GB/s both ways", "p50 us", "ratio");
  std::printf("%-24s %10s %10s %9s %9s %9s %9s   median (range)\n", "", "attend", "raw", "attend", "raw",
              "attend", "raw");
  for (const Case& c :
       {Case{"1 KiB, 1 in flight", 1 << 10, 1, 1}, Case{"1 KiB, 16 in flight", 1 << 10, 2, 16},
        Case{"1 MiB, 4 in flight", 1 << 20, 2, 4}, Case{"16 MiB, 1 in flight", 16 << 20, 1, 1},
        Case{"16 MiB, 4 in flight", 16 << 20, 2, 4}}) {
    attend::bench::Compare(binaries, c, rounds, seconds);
  }
  attend::bench::Memory(binaries, 256 << 20);
  return 0;
}
