// The tool's commands. Each Add declares one under `app`; parsing the command line runs it and leaves its
// exit code in the context, which outlives the app.
#ifndef ATTEND_CLIENT_CLI_COMMANDS_H_
#define ATTEND_CLIENT_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>

#include "client/cli/options.h"

namespace attend::cli {

void AddRun(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);
void AddCheck(CLI::App& app, Context& context);
void AddBench(CLI::App& app, Context& context);
void AddInfo(CLI::App& app, Context& context);
void AddHealth(CLI::App& app, Context& context);
void AddDemo(CLI::App& app, Context& context);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_COMMANDS_H_
