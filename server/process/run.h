// The life of the process: options, start, signals, drain, exit code.
#ifndef ATTEND_SERVER_PROCESS_RUN_H_
#define ATTEND_SERVER_PROCESS_RUN_H_

namespace attend::server {

// Exit codes: 0 after a whole drain, 1 for a fault or a drain that had to cancel calls, 2 for options
// that are wrong, 128 + signal when a second signal cuts the drain short.
int RunMain(int argc, const char* const* argv);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_RUN_H_
