// InfoService: what the server is and can do.
#ifndef ATTEND_SERVER_PROCESS_INFO_SERVICE_H_
#define ATTEND_SERVER_PROCESS_INFO_SERVICE_H_

#include <vector>

#include "attend/v1/info.grpc.pb.h"
#include "server/device/device.h"
#include "server/metrics/metrics.h"
#include "server/process/options.h"

namespace attend::server {

// The answer, made once. options are resolved.
v1::GetServerInfoResponse MakeServerInfo(const ServerOptions& options,
                                         const std::vector<std::unique_ptr<Device>>& devices);

class InfoService final : public v1::InfoService::CallbackService {
 public:
  InfoService(v1::GetServerInfoResponse info, Metrics* metrics) : info_(std::move(info)), metrics_(metrics) {}
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  const v1::GetServerInfoResponse info_;
  Metrics* const metrics_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_INFO_SERVICE_H_
