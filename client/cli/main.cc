// attend: the command-line tool.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "attend_version.h"
#include "client/cli/commands.h"

namespace {

// What is wrong with the command line, and the command whose --help tells how it is right.
std::string UsageMessage(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* command = app;
  std::string name = app->get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    absl::StrAppend(&name, " ", command->get_name());
  }
  std::string wrong = error.what();
  std::string known;
  for (const CLI::App* other : command->get_subcommands({})) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", other->get_name());
  }
  const std::vector<std::string> rest = app->remaining(/*recurse=*/true);
  if (!known.empty() && !rest.empty()) {
    const bool option = rest.front().rfind('-', 0) == 0;
    wrong = option ? absl::StrCat("there is no option '", rest.front(), "'")
                   : absl::StrCat("there is no command '", rest.front(), "'; there are ", known);
  } else if (command == app && error.get_name() == "RequiredError") {
    wrong = absl::StrCat("a command is missing: ", known);
  }
  return absl::StrCat("attend: ", wrong, "\n`", name, " --help` says more.\n");
}

// The --help of a command lists its own options only.
void PointToCommonOptions(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    PointToCommonOptions(*command);
    const std::string own = command->get_footer();
    command->footer(
        absl::StrCat(own, own.empty() ? "" : "\n",
                     "`attend --help` lists what every command takes: --address, --timeout-s, --json, TLS."));
  }
}

int Run(int argc, char** argv) {
  attend::cli::Context context;
  CLI::App app("Calls an Attend server: exact attention over gRPC.", "attend");
  app.failure_message(UsageMessage);
  app.set_version_flag("--version", "attend " ATTEND_VERSION);
  app.fallthrough();
  app.require_subcommand(1);
  attend::cli::AddContextFlags(app, context);
  attend::cli::AddRun(app, context);
  attend::cli::AddExplain(app, context);
  attend::cli::AddCheck(app, context);
  attend::cli::AddBench(app, context);
  attend::cli::AddInfo(app, context);
  attend::cli::AddHealth(app, context);
  attend::cli::AddDemo(app, context);
  PointToCommonOptions(app);
  app.footer(
      "These options may also stand behind the command, whose own are listed by `attend COMMAND --help`.\n"
      "Exit codes: 0 done and right; 1 the call failed or a check is off; 2 the command line is wrong.\n"
      "Examples:\n"
      "  attend info\n"
      "  attend run qkv.safetensors out.safetensors --causal bottom-right --lse\n"
      "  attend --address unix:/run/attend.sock check --dtype bf16\n"
      "  attend bench load --rate 500 --json");
  try {
    // CLI11 would take the next flag for the value.
    for (int i = 1; i < argc; ++i) {
      const absl::string_view flag = argv[i];
      if (absl::StartsWith(flag, "--") && flag.find('=') == flag.size() - 1) {
        throw CLI::ValidationError(std::string(flag), "has no value: give it one, or leave it out");
      }
    }
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version come this way too, with code 0.
    return app.exit(error) == 0 ? attend::cli::kExitOk : attend::cli::kExitUsage;
  }
  return context.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    // Such as too little memory for the tensors asked for.
    std::fprintf(stderr, "attend: %s\n", error.what());
    return attend::cli::kExitError;
  }
}
