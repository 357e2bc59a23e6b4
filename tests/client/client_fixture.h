// What tests of the client share: inputs, a client that does not wait long, and comparison.
#ifndef ATTEND_TESTS_CLIENT_CLIENT_FIXTURE_H_
#define ATTEND_TESTS_CLIENT_CLIENT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attend/client.h"

namespace attend::testing {

// A request whose q, k and v are unit-normal floats of one shape.
struct Inputs {
  explicit Inputs(Shape shape, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* data : {&q, &k, &v}) {
      int64_t elements = 1;
      for (const int64_t size : shape) elements *= size;
      data->resize(static_cast<size_t>(elements));
      for (float& x : *data) x = normal(random);
    }
    request.q = {DataType::kFp32, shape, q.data()};
    request.k = {DataType::kFp32, shape, k.data()};
    request.v = {DataType::kFp32, shape, v.data()};
  }
  std::vector<float> q, k, v;
  Request request;
};

inline std::unique_ptr<Client> NewClient(const std::string& address, ClientOptions options = {}) {
  options.retry.backoff_initial = absl::Milliseconds(5);
  options.retry.backoff_max = absl::Milliseconds(20);
  auto client = Client::Create(address, options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

inline void ExpectNear(absl::Span<const float> got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << "at " << i;
}

}  // namespace attend::testing

#endif  // ATTEND_TESTS_CLIENT_CLIENT_FIXTURE_H_
