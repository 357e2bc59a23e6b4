// What InfoService answers: what the server is and can do.
#ifndef ATTEND_SERVER_PROCESS_SERVER_INFO_H_
#define ATTEND_SERVER_PROCESS_SERVER_INFO_H_

#include <memory>
#include <vector>

#include "attend/v1/info.pb.h"
#include "server/device/device.h"
#include "server/process/options.h"

namespace attend::server {

// Options are resolved.
v1::GetServerInfoResponse MakeServerInfo(const ServerOptions& options,
                                         const std::vector<std::unique_ptr<Device>>& devices);

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_SERVER_INFO_H_
