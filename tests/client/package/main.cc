// Asks the server in argv[1] for attention of one query over two keys, and prints it.
#include <attend/client.h>

#include <iostream>
#include <vector>

int main(int, char** argv) {
  auto client = attend::Client::Create(argv[1]);
  if (!client.ok()) {
    std::cerr << attend::Describe(client.status()) << "\n";
    return 1;
  }
  const std::vector<float> q(8, 0.0f), k(16, 1.0f);
  std::vector<float> v(16, 1.0f);
  for (size_t d = 8; d < 16; ++d) v[d] = 3.0f;
  attend::Request request;
  request.q = {attend::DataType::kFp32, {1, 1, 1, 8}, q.data()};
  request.k = {attend::DataType::kFp32, {1, 1, 2, 8}, k.data()};
  request.v = {attend::DataType::kFp32, {1, 1, 2, 8}, v.data()};
  const auto response = (*client)->Attend(request);
  if (!response.ok()) {
    std::cerr << attend::Describe(response.status()) << "\n";
    return 1;
  }
  // Equal scores: the mean of both values.
  std::cout << "out " << response->out.as<float>()[0] << "\n";
  return 0;
}
