// attend: the command-line tool.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "attend_version.h"
#include "client/cli/commands.h"

namespace {

int Run(int argc, char** argv) {
  attend::cli::Context context;
  CLI::App app("Calls an Attend server: exact attention over gRPC.", "attend");
  app.footer(
      "Exit codes: 0 done and right; 1 the call failed or a check is off; 2 the command line is wrong.\n"
      "Each flag of this list may also stand behind the command. `attend COMMAND --help` explains one.");
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
  try {
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
