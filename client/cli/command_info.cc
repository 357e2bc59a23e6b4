// attend info and attend health.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/report.h"

namespace attend::cli {
namespace {

struct HealthFlags {
  std::string service;
  double wait_s = 0;
};

int Info(const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::StatusOr<ServerInfo> info = (*client)->GetServerInfo();
  if (!info.ok()) return Fail(info.status());
  std::fputs((context.json ? ToJson(*info).dump(2) + "\n" : ToText(*info)).c_str(), stdout);
  return kExitOk;
}

int Health(const HealthFlags& flags, const Context& context) {
  const auto client = context.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::Time give_up = absl::Now() + absl::Seconds(flags.wait_s);
  absl::Status status;
  while (true) {
    status = (*client)->CheckHealth(flags.service);
    if (status.ok() || absl::Now() >= give_up) break;
    absl::SleepFor(absl::Milliseconds(100));
  }
  if (context.json) {
    const nlohmann::ordered_json json = {{"serving", status.ok()},
                                         {"message", std::string(status.message())}};
    std::printf("%s\n", json.dump(2).c_str());
    return status.ok() ? kExitOk : kExitError;
  }
  if (!status.ok()) return Fail(status);
  std::printf("SERVING\n");
  return kExitOk;
}

}  // namespace

void AddInfo(CLI::App& app, Context& context) {
  CLI::App& command = *app.add_subcommand("info", "Describe the server: devices, kernels, limits");
  command.callback([&context] { context.exit_code = Info(context); });
}

void AddHealth(CLI::App& app, Context& context) {
  auto flags = std::make_shared<HealthFlags>();
  CLI::App& command =
      *app.add_subcommand("health", "Ask whether the server serves: exit code 0 if so, else 1");
  command.add_option("--service", flags->service,
                     "Service to ask for, by full name (default the whole server)");
  command.add_option("--wait-s", flags->wait_s, "Ask again for so many seconds until it serves")
      ->check(Between(0, kSecondsMax))
      ->capture_default_str();
  command.callback([flags, &context] { context.exit_code = Health(*flags, context); });
}

}  // namespace attend::cli
