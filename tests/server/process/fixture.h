// A server in this process on free ports, and requests for it.
#ifndef ATTEND_TESTS_SERVER_PROCESS_FIXTURE_H_
#define ATTEND_TESTS_SERVER_PROCESS_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "attend/v1/attention.grpc.pb.h"
#include "attend/v1/info.grpc.pb.h"
#include "server/process/options.h"
#include "server/process/server.h"

namespace attend::server {

// Options on free ports with the null device.
ServerOptions TestOptions();
// Starts, on this machine's GPUs or others; ends the test where that fails.
std::unique_ptr<Server> StartServer(ServerOptions options);
std::unique_ptr<Server> StartServer(ServerOptions options, const Gpus& gpus);
std::string Target(const Server& server);
std::shared_ptr<grpc::Channel> Connect(const Server& server);

// q, k and v of ones, [1, heads, len, dim] in fp32 (k and v: kv_len).
v1::AttendRequest MakeRequest(int64_t heads, int64_t q_len, int64_t kv_len, int64_t dim);

// One call with a deadline of 10 s.
grpc::Status Attend(grpc::Channel& channel, const v1::AttendRequest& request,
                    v1::AttendResponse* response = nullptr,
                    const std::function<void(grpc::ClientContext*)>& adjust = {},
                    const std::function<void(const grpc::ClientContext&)>& look = {});

// A connection to 127.0.0.1 that has sent these bytes, with limit_ms for each read of it; -1 where there is
// none. The caller closes it.
int SendTo(int port, const std::string& bytes, int limit_ms);
// GET over HTTP: status line, headers and body as they came; what came of them where the time was up.
std::string HttpGet(int port, const std::string& path, int limit_ms = 60000);
// The value of a series such as attend_ready or attend_rejected_total{reason="x"}; -1 where it is missing.
double MetricValue(const Server& server, const std::string& series);
// Waits up to 10 s.
bool Eventually(const std::function<bool()>& condition);

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_PROCESS_FIXTURE_H_
