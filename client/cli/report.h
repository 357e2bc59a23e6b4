// A call's report and a server's description, as text and as JSON.
#ifndef ATTEND_CLIENT_CLI_REPORT_H_
#define ATTEND_CLIENT_CLI_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "attend/types.h"

namespace attend::cli {

nlohmann::ordered_json ToJson(const Report& report);
nlohmann::ordered_json ToJson(const ServerInfo& info);
std::string ToText(const Report& report);
std::string ToText(const ServerInfo& info);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_REPORT_H_
