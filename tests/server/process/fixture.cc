#include "tests/server/process/fixture.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "server/device/cuda/cuda_api.h"

namespace attend::server {

ServerOptions TestOptions() {
  ServerOptions options;
  options.address = "127.0.0.1:0";
  options.metrics_address = "127.0.0.1:0";
  options.device = "null";
  options.host_bytes_max = int64_t{256} << 20;
  options.receive_bytes_max = int64_t{256} << 20;
  options.drain_timeout = absl::Seconds(10);
  return options;
}

std::unique_ptr<Server> StartServer(ServerOptions options) {
  return StartServer(std::move(options), RealGpus());
}

std::unique_ptr<Server> StartServer(ServerOptions options, const Gpus& gpus) {
  const absl::Status resolved = ResolveOptions(&options);
  EXPECT_TRUE(resolved.ok()) << resolved;
  auto server = Server::Start(options, gpus);
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  return *std::move(server);
}

std::string Target(const Server& server) { return "127.0.0.1:" + std::to_string(server.grpc_port()); }

std::shared_ptr<grpc::Channel> Connect(const Server& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(Target(server), grpc::InsecureChannelCredentials(), arguments);
}

v1::AttendRequest MakeRequest(int64_t heads, int64_t q_len, int64_t kv_len, int64_t dim) {
  const auto fill = [&](v1::TensorSpec* spec, std::string* data, int64_t len) {
    spec->set_dtype(v1::DATA_TYPE_FP32);
    for (const int64_t size : {int64_t{1}, heads, len, dim}) spec->add_shape(size);
    const float one = 1.0f;
    for (int64_t i = 0; i < heads * len * dim; ++i)
      data->append(reinterpret_cast<const char*>(&one), sizeof(one));
  };
  v1::AttendRequest request;
  fill(request.mutable_q(), request.mutable_q_data(), q_len);
  fill(request.mutable_k(), request.mutable_k_data(), kv_len);
  fill(request.mutable_v(), request.mutable_v_data(), kv_len);
  return request;
}

grpc::Status Attend(grpc::Channel& channel, const v1::AttendRequest& request, v1::AttendResponse* response,
                    const std::function<void(grpc::ClientContext*)>& adjust,
                    const std::function<void(const grpc::ClientContext&)>& look) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (adjust) adjust(&context);
  v1::AttendResponse ignored;
  const auto stub =
      v1::AttentionService::NewStub(std::shared_ptr<grpc::Channel>(std::shared_ptr<void>(), &channel));
  const grpc::Status status = stub->Attend(&context, request, response == nullptr ? &ignored : response);
  if (look) look(context);
  return status;
}

int SendTo(int port, const std::string& bytes, int limit_ms) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {limit_ms / 1000, limit_ms % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    return fd;
  }
  close(fd);
  return -1;
}

std::string HttpGet(int port, const std::string& path, int limit_ms) {
  const int fd =
      SendTo(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", limit_ms);
  if (fd < 0) return "";
  std::string answer;
  char buffer[65536];
  for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
    answer.append(buffer, static_cast<size_t>(n));
  close(fd);
  return answer;
}

double MetricValue(const Server& server, const std::string& series) {
  const std::string text = HttpGet(server.http_port(), "/metrics");
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + series.size() + 2);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace attend::server
