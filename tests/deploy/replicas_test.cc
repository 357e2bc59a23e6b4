// More machines serve more callers: three server processes behind one client, which takes them in turn. One
// is drained and one killed under load.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/deploy/callers.h"
#include "tests/integration/eventually.h"
#include "tests/integration/server_process.h"

namespace attend::deploy {
namespace {

using integration::Eventually;
using integration::ServerProcess;
using ::testing::IsEmpty;

constexpr int kCallers = 8;

class Replicas : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> targets;
    for (int i = 0; i < 3; ++i) {
      // What a drain is given on Kubernetes by preStop: time in which clients learn of it and go elsewhere.
      servers_.push_back(
          std::make_unique<ServerProcess>(std::vector<std::string>{"--device=cpu", "--drain-delay=5s"}));
      ASSERT_TRUE(servers_[i]->running()) << servers_[i]->Log();
      targets.push_back(servers_[i]->target());
    }
    // As the headless service's name would resolve.
    target_ = absl::StrCat("ipv4:", absl::StrJoin(targets, ","));
  }

  std::unique_ptr<Client> NewClient(int attempts_max) {
    ClientOptions options;
    options.retry.attempts_max = attempts_max;
    return *Client::Create(target_, options);
  }

  // Until each of these servers has answered so many more.
  bool WaitForAnswers(const std::vector<int>& which, int64_t more) {
    std::vector<int64_t> until;
    for (const int i : which) until.push_back(Answered(*servers_[i]) + more);
    return Eventually([&] {
      for (size_t n = 0; n < which.size(); ++n) {
        if (Answered(*servers_[which[n]]) < until[n]) return false;
      }
      return true;
    });
  }

  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::string target_;
};

TEST_F(Replicas, EachTakesItsShare) {
  const std::unique_ptr<Client> client = NewClient(4);
  {
    Callers callers(client.get(), kCallers);
    ASSERT_TRUE(Eventually([&] { return callers.answered() >= 600; }));
    callers.Stop();
    EXPECT_THAT(callers.failures(), IsEmpty());
  }
  std::vector<int64_t> answered;
  int64_t all = 0;
  for (const auto& server : servers_) all += answered.emplace_back(Answered(*server));
  for (const int64_t one : answered) EXPECT_GT(one, all / 6) << "of " << all;
}

TEST_F(Replicas, ADrainAndAKillLoseNothing) {
  const std::unique_ptr<Client> client = NewClient(4);  // as clients are, with their retries
  Callers callers(client.get(), kCallers);
  ASSERT_TRUE(WaitForAnswers({0, 1, 2}, 20));
  servers_[0]->Signal(SIGTERM);
  EXPECT_EQ(servers_[0]->WaitForExit(), 0) << servers_[0]->Log();
  ASSERT_TRUE(WaitForAnswers({1, 2}, 20));
  servers_[1]->Signal(SIGKILL);
  ASSERT_TRUE(WaitForAnswers({2}, 100));
  callers.Stop();
  EXPECT_THAT(callers.failures(), IsEmpty());
}

TEST_F(Replicas, WithoutRetriesOnlyWhatTheKilledOneHadIsLost) {
  const std::unique_ptr<Client> client = NewClient(1);
  Callers callers(client.get(), kCallers);
  ASSERT_TRUE(WaitForAnswers({0, 1, 2}, 20));
  servers_[0]->Signal(SIGTERM);
  EXPECT_EQ(servers_[0]->WaitForExit(), 0) << servers_[0]->Log();
  ASSERT_TRUE(WaitForAnswers({1, 2}, 20));
  EXPECT_THAT(callers.failures(), IsEmpty()) << "a drain loses nothing";
  servers_[1]->Signal(SIGKILL);
  ASSERT_TRUE(WaitForAnswers({2}, 100));
  callers.Stop();
  for (const absl::Status& status : callers.failures()) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << Describe(status);
  }
  // Whatever the survivor began, it ended well: what failed was the killed one's.
  EXPECT_EQ(Ended(*servers_[2]), Answered(*servers_[2]));
  EXPECT_LE(callers.failures().size(), size_t{kCallers}) << "one for each caller that waited for it";
}

}  // namespace
}  // namespace attend::deploy
