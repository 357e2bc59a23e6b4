// Clients that come and go in a process that is no server.
#include <vector>

#include "attend/client.h"
#include "gtest/gtest.h"
#include "tests/integration/server_process.h"

namespace attend::integration {
namespace {

// The last channel of a process must not end on one of gRPC's own threads: it would wait for itself there,
// and the process abort later. Which thread it ends on is a race, so: many times.
TEST(ClientLifetime, ManyCallOnceAndGo) {
  ServerProcess server;
  ASSERT_TRUE(server.running()) << server.Log();
  const std::vector<float> data(16, 1.0f);
  Request request;
  request.q = {DataType::kFp32, {1, 1, 2, 8}, data.data()};
  request.k = request.v = request.q;
  for (int i = 0; i < 1000; ++i) {
    const auto client = Client::Create(server.target());
    ASSERT_TRUE(client.ok()) << client.status();
    const auto response = (*client)->Attend(request);
    ASSERT_TRUE(response.ok()) << response.status();
  }
}

}  // namespace
}  // namespace attend::integration
