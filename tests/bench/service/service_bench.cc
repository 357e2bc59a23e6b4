// What the service costs, in one run on one machine: attend-server beside a raw gRPC C++ server that carries
// the same bytes both ways over as many connections (raw_echo.cc), and beside what people write today
// (today_service.py), and beside another build of attend-server (--before). One load generator drives all of
// them; rounds go from one to the next in turn; figures are medians over the rounds. CPU time is the server's
// alone, as the kernel counts it: what others on the machine take disturbs it less than what a clock says.
//
//   service_bench --attend build/.../attend-server --raw build/.../raw_echo            transport alone
//   service_bench --suite attention --device cuda --today today_service.py ...         the whole service
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/service/figures.h"
#include "tests/bench/service/load.h"
#include "tests/bench/service/requests.h"
#include "tests/integration/processes.h"
#include "tests/integration/server_process.h"

namespace attend::bench {
namespace {

using Json = nlohmann::ordered_json;
using integration::ChildProcess;
using integration::ServerProcess;

constexpr char kAttendMethod[] = "/attend.v1.AttentionService/Attend";
constexpr char kTodayMethod[] = "/a/attend";
constexpr absl::Duration kStartLimit = absl::Minutes(2);  // of a peer that loads torch from a cold disk

struct Flags {
  std::string attend, before, raw, today;
  std::string suite = "transport", device = "null", rows, json;
  std::vector<std::string> server_flags;
  int rounds = 5;
  double seconds = 1;
};

struct Row {
  std::string name;
  int connections, in_flight;
  int64_t bytes;         // of the transport suite's message
  AttentionShape shape;  // of the attention suite's
};

std::vector<Row> Rows(const std::string& suite) {
  if (suite == "transport") {
    return {{"1 KiB, 1 in flight", 1, 1, 1 << 10, {}},
            {"1 KiB, 16 in flight", 2, 16, 1 << 10, {}},
            {"1 MiB, 4 in flight", 2, 4, 1 << 20, {}},
            {"16 MiB, 1 in flight", 1, 1, 16 << 20, {}},
            {"16 MiB, 4 in flight", 2, 4, 16 << 20, {}}};
  }
  return {{"[1,8,128,64] x 1", 1, 1, 0, {1, 8, 128, 64}},
          {"[1,8,128,64] x 64", 8, 64, 0, {1, 8, 128, 64}},
          {"[1,8,16,64] x 64", 8, 64, 0, {1, 8, 16, 64}},
          {"[1,8,512,64] x 64", 8, 64, 0, {1, 8, 512, 64}},
          {"[1,32,1024,128] x 8", 8, 8, 0, {1, 32, 1024, 128}},
          {"[1,32,4096,128] x 1", 1, 1, 0, {1, 32, 4096, 128}},
          {"[4,8,4096,64] x 1", 1, 1, 0, {4, 8, 4096, 64}}};
}

Json ToJson(const Figures& f) { return {{"median", f.median}, {"min", f.least}, {"max", f.most}}; }

// One server of a row, and what its rounds measured.
struct Peer {
  std::string name;
  Load load;
  const ChildProcess* process;
  std::vector<double> calls_per_s = {}, p50_s = {}, p99_s = {}, cpu_s = {};  // the last of a call
};

Json ToJson(const Peer& peer) {
  return {{"calls_per_s", ToJson(Summary(peer.calls_per_s))},
          {"p50_s", ToJson(Summary(peer.p50_s))},
          {"p99_s", ToJson(Summary(peer.p99_s))},
          {"cpu_s", ToJson(Summary(peer.cpu_s))}};
}

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

std::unique_ptr<ServerProcess> StartAttend(const Flags& flags, const std::string& binary) {
  std::vector<std::string> arguments = flags.server_flags;
  arguments.insert(arguments.end(), {"--device=" + flags.device, "--log-level=warn"});
  auto server = std::make_unique<ServerProcess>(arguments, binary);
  if (!server->running()) Die(binary + ": " + server->Log());
  return server;
}

// A peer is a program that prints its port, on a line of its own, and then serves until it is killed.
struct PeerProcess {
  std::unique_ptr<ChildProcess> process;
  int port = 0;  // 0 where it ended before that, or took longer than kStartLimit; its output may say why
  std::string target() const { return "127.0.0.1:" + std::to_string(port); }
};

PeerProcess StartPeer(const std::vector<std::string>& command) {
  PeerProcess peer = {std::make_unique<ChildProcess>(command)};
  const absl::Time limit = absl::Now() + kStartLimit;
  for (bool ended = false; peer.port == 0 && !ended && absl::Now() < limit;) {
    ended = peer.process->Wait(absl::Milliseconds(10)).has_value();
    std::vector<std::string> lines = absl::StrSplit(peer.process->Output(), '\n');
    lines.pop_back();  // no line yet
    for (const std::string& line : lines) {
      if (peer.port == 0 && !absl::SimpleAtoi(line, &peer.port)) peer.port = 0;
    }
  }
  return peer;
}

// Those that serve every row.
struct Servers {
  std::unique_ptr<ServerProcess> attend;
  std::unique_ptr<ServerProcess> before;  // null: none
  std::optional<PeerProcess> today;
};

std::optional<PeerProcess> StartToday(const Flags& flags) {
  if (flags.suite != "attention" || flags.today.empty()) return std::nullopt;
  PeerProcess today = StartPeer({"python3", flags.today});
  if (today.port > 0) return today;
  std::printf("%s: left out: %s\n", flags.today.c_str(), today.process->Output().c_str());
  return std::nullopt;
}

// Warms the peer up; the bytes of its reply.
int64_t WarmUp(const Peer& peer) {
  Load load = peer.load;
  load.seconds = 0.3;
  return RunLoad(load).reply_bytes;
}

void Print(const Row& row, const std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    const Figures calls = Ratio(peers[0].calls_per_s, peer.calls_per_s);
    std::printf("%-22s %-7s %10.1f %10.3f %10.3f %10.1f", peer.name == "attend" ? row.name.c_str() : "",
                peer.name.c_str(), Summary(peer.calls_per_s).median, Summary(peer.p50_s).median * 1e3,
                Summary(peer.p99_s).median * 1e3, Summary(peer.cpu_s).median * 1e6);
    if (peer.name != "attend") {
      std::printf("   %6.2f (%.2f to %.2f)   %6.2f   %6.2f", calls.median, calls.least, calls.most,
                  Ratio(peers[0].p50_s, peer.p50_s).median, Ratio(peers[0].cpu_s, peer.cpu_s).median);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

Json Measure(const Flags& flags, const Servers& servers, const Row& row) {
  const bool attention = flags.suite == "attention";
  Load load;
  load.target = servers.attend->target();
  load.connections = row.connections;
  load.in_flight = row.in_flight;
  load.seconds = flags.seconds;
  load.method = kAttendMethod;
  load.request = attention ? AttendMessage(row.shape) : TransportMessage(row.bytes);
  std::vector<Peer> peers = {{"attend", load, &servers.attend->process()}};
  const int64_t reply_bytes = WarmUp(peers[0]);
  if (servers.before != nullptr) {
    load.target = servers.before->target();
    peers.push_back({"before", load, &servers.before->process()});
    WarmUp(peers.back());
  }

  const PeerProcess raw = StartPeer({flags.raw, std::to_string(reply_bytes)});
  if (raw.port == 0) Die(flags.raw + ": " + raw.process->Output());
  load.target = raw.target();
  peers.push_back({"raw", load, raw.process.get()});
  WarmUp(peers.back());
  if (servers.today) {
    load.target = servers.today->target();
    load.method = kTodayMethod;
    load.request = TodayMessage(row.shape);
    peers.push_back({"today", load, servers.today->process.get()});
    WarmUp(peers.back());
  }
  for (int round = 0; round < flags.rounds; ++round) {
    for (size_t i = 0; i < peers.size(); ++i) {
      // Who goes first alternates.
      Peer& peer = peers[(static_cast<size_t>(round) + i) % peers.size()];
      const double cpu_before_s = peer.process->CpuSeconds();
      const LoadResult result = RunLoad(peer.load);
      const double cpu_s = peer.process->CpuSeconds() - cpu_before_s;
      peer.calls_per_s.push_back(result.calls_per_second());
      peer.p50_s.push_back(Percentile(result.latency, 0.5));
      peer.p99_s.push_back(Percentile(result.latency, 0.99));
      peer.cpu_s.push_back(cpu_s / static_cast<double>(std::max<int64_t>(result.calls, 1)));
    }
  }
  Print(row, peers);
  Json json = {{"row", row.name},
               {"connections", row.connections},
               {"in_flight", row.in_flight},
               {"request_bytes", peers[0].load.request.size()},
               {"reply_bytes", reply_bytes}};
  for (const Peer& peer : peers) {
    json[peer.name] = ToJson(peer);
    if (peer.name == "attend") continue;
    json["attend_by_" + peer.name] = {{"calls_per_s", ToJson(Ratio(peers[0].calls_per_s, peer.calls_per_s))},
                                      {"p50_s", ToJson(Ratio(peers[0].p50_s, peer.p50_s))},
                                      {"cpu_s", ToJson(Ratio(peers[0].cpu_s, peer.cpu_s))}};
  }
  return json;
}

// Resident memory that one request adds, beyond the pool, which is there to be used.
Json Memory(const Flags& flags, int64_t bytes) {
  const std::unique_ptr<ServerProcess> server = StartAttend(flags, flags.attend);
  const ChildProcess& attend = server->process();
  Load load;
  load.target = server->target();
  load.method = kAttendMethod;
  load.seconds = 0;
  load.request = TransportMessage(1024);
  RunLoad(load);
  const int64_t idle = attend.ResidentBytes();
  load.request = TransportMessage(bytes);
  const int64_t reply_bytes = RunLoad(load).reply_bytes;
  const int64_t pool = static_cast<int64_t>(load.request.size()) + reply_bytes;  // touched now
  attend.ResetPeak();
  RunLoad(load);
  const int64_t growth = attend.PeakBytes() - idle - pool;
  const double share = static_cast<double>(growth) / static_cast<double>(bytes);
  std::printf(
      "one request of %.0f MiB: resident memory grows by %.3f of its bytes (pool of %.0f MiB touched)\n",
      static_cast<double>(bytes) / (1 << 20), share, static_cast<double>(pool) / (1 << 20));
  return {{"request_bytes", bytes}, {"resident_growth_ratio", share}};
}

void Run(const Flags& flags) {
  Json json = {{"suite", flags.suite},
               {"device", flags.device},
               {"rounds", flags.rounds},
               {"seconds", flags.seconds},
               {"cpus", std::thread::hardware_concurrency()}};
  std::printf("%-22s %-7s %10s %10s %10s %10s   %24s   %6s   %6s\n", "", "", "calls/s", "p50 ms", "p99 ms",
              "CPU us", "attend by it: calls/s", "p50", "CPU");
  json["rows"] = Json::array();
  const Servers servers = {StartAttend(flags, flags.attend),
                           flags.before.empty() ? nullptr : StartAttend(flags, flags.before),
                           StartToday(flags)};
  for (const Row& row : Rows(flags.suite)) {
    if (row.name.find(flags.rows) != std::string::npos) json["rows"].push_back(Measure(flags, servers, row));
  }
  if (json["rows"].empty()) Die("no row of the suite has \"" + flags.rows + "\" in its name");
  if (flags.suite == "transport" && flags.rows.empty()) json["memory"] = Memory(flags, 256 << 20);
  if (!flags.json.empty()) std::ofstream(flags.json) << json.dump(1) << "\n";
}

}  // namespace
}  // namespace attend::bench

int main(int argc, char** argv) {
  attend::bench::Flags flags;
  CLI::App app("Measures attend-server beside raw gRPC and beside what people write today.", "service_bench");
  app.add_option("--attend", flags.attend, "attend-server")->required()->check(CLI::ExistingFile);
  app.add_option("--before", flags.before, "Another build of attend-server, to compare with")
      ->check(CLI::ExistingFile);
  app.add_option("--raw", flags.raw, "raw_echo")->required()->check(CLI::ExistingFile);
  app.add_option("--today", flags.today, "today_service.py; left out where Python lacks torch or grpcio")
      ->check(CLI::ExistingFile);
  app.add_option("--suite", flags.suite, "transport: messages by size; attention: by shape, fp16, causal")
      ->check(CLI::IsMember({"transport", "attention"}))
      ->capture_default_str();
  app.add_option("--device", flags.device, "attend-server's --device")->capture_default_str();
  app.add_option("--server-flag", flags.server_flags, "One more flag of attend-server; may be repeated");
  app.add_option("--rows", flags.rows, "Only rows with this in their name");
  app.add_option("--rounds", flags.rounds, "Rounds of each row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Seconds of a round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", flags.json, "File that gets the figures");
  CLI11_PARSE(app, argc, argv);
  attend::bench::Run(flags);
  return 0;
}
