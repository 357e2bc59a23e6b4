// Which threads see to calls. What else calls do is tested through the whole server.
#include "server/process/generic_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/server/process/fixture.h"
#include "tests/server/process/raw_call.h"

namespace attend::server {
namespace {

constexpr int64_t kThreads = 8;  // of two queues

class GenericServerTest : public testing::Test {
 protected:
  // Answers with what it was sent: /Echo at once, /Slow after 2 ms, /Held once hold_ is free.
  class Handler final : public GenericCall::Handler {
   public:
    Handler(GenericServerTest* test, GenericCall* call) : test_(test), call_(call) {}
    void Start() override {
      test_->Saw();
      call_->StartRead(&message_);
    }
    void OnReadDone(bool) override {
      test_->Saw();
      const std::string& method = call_->context().method();
      if (method == "/Slow") absl::SleepFor(absl::Milliseconds(2));
      if (method == "/Held") {
        ++test_->held_;
        absl::MutexLock wait(&test_->hold_);
      }
      call_->StartWriteAndFinish(message_, grpc::Status::OK);
    }
    void OnCancel() override {}
    void OnDone() override {
      ++test_->done_;
      delete this;
    }

   private:
    GenericServerTest* const test_;
    GenericCall* const call_;
    grpc::ByteBuffer message_;
  };

  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    generic_.Register(&builder);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    generic_.Start();
    channel_ = Connect();
  }
  void TearDown() override {
    server_->Shutdown();
    server_->Wait();
    generic_.Shutdown();
    EXPECT_EQ(done_, called_);
  }

  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // windows stay what they are
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  std::unique_ptr<RawCall> Begin(const std::string& method, const std::string& bytes) {
    auto call = std::make_unique<RawCall>(channel_, method);
    call->Write(bytes);
    return call;
  }
  void ReadAndFinish(RawCall* call, const std::string& expected) {
    EXPECT_EQ(call->Read(), expected);
    EXPECT_TRUE(call->Finish().ok());
    ++called_;
  }
  // One call after another.
  void Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, int times) {
    for (int i = 0; i < times; ++i) {
      RawCall call(channel, method);
      call.Write("x");
      ReadAndFinish(&call, "x");
    }
  }
  // From sixteen callers with a connection each.
  void CallFromMany(const std::string& method, int times) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) threads.emplace_back([&] { Call(Connect(), method, times); });
    for (std::thread& thread : threads) thread.join();
  }
  // Until calls live on the second queue, too.
  void Load() {
    EXPECT_TRUE(Eventually([&] {
      CallFromMany("/Slow", 10);
      return polling(1) > 0;
    }));
  }
  // One after another, sooner or later: a thread that the machine suspends looks like one without rest.
  bool OneThreadSeesToCalls() {
    return Eventually([&] {
      TakeThreads();
      Call(channel_, "/Echo", 50);
      return TakeThreads() == 1 && polling(0) == 1 && polling(1) == 0;
    });
  }
  int64_t polling(size_t queue) const { return generic_.polling()[queue]; }

  void Saw() {
    absl::MutexLock lock(&mutex_);
    saw_.insert(std::this_thread::get_id());
  }
  // The threads that reacted since the last call of this.
  size_t TakeThreads() {
    absl::MutexLock lock(&mutex_);
    const size_t size = saw_.size();
    saw_.clear();
    return size;
  }

  absl::Mutex mutex_;
  std::set<std::thread::id> saw_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex hold_;
  std::atomic<int> held_{0}, called_{0}, done_{0};
  GenericServer generic_{kThreads, [this](GenericCall* call) { return new Handler(this, call); }};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GenericServerTest, OneThreadSeesToOneCallAfterAnother) { EXPECT_TRUE(OneThreadSeesToCalls()); }

// Calls that are answered where they are seen are hardly ever counted beside each other. Without help about
// every second server stays at one thread.
class FreshServerTest : public GenericServerTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(OneAfterAnother, FreshServerTest, testing::Range(0, 5));

TEST_P(FreshServerTest, AThreadWithoutRestIsHelped) {
  CallFromMany("/Slow", 20);
  EXPECT_GT(TakeThreads(), static_cast<size_t>(kThreads) / 2);
}

TEST_F(GenericServerTest, AfterALoadOneThreadIsEnoughAgain) {
  Load();
  EXPECT_TRUE(OneThreadSeesToCalls());
}

// A handler that does not return, as where a driver hangs, keeps nobody else from an answer while the first
// queue has a thread left.
TEST_F(GenericServerTest, AThreadThatIsHeldUpIsReplaced) {
  hold_.Lock();
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(Begin("/Held", "x"));
    EXPECT_TRUE(Eventually([&] { return held_ == i + 1; }));
  }
  Call(channel_, "/Echo", 20);
  hold_.Unlock();
  for (const auto& call : calls) ReadAndFinish(call.get(), "x");
}

TEST_F(GenericServerTest, CallsThatAreNotSentKeepAThreadOfTheirQueue) {
  Load();
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < 16; ++i) calls.push_back(std::make_unique<RawCall>(channel_, "/Echo"));
  absl::SleepFor(absl::FromChrono(3 * Pollers::kPatience));
  EXPECT_GT(polling(1), 0);
  for (const auto& call : calls) call->Write("x");
  for (const auto& call : calls) ReadAndFinish(call.get(), "x");
}

TEST_F(GenericServerTest, CallsThatAreNotReadKeepOneThreadOfTheirQueue) {
  Load();
  const std::string large(size_t{64} << 10, 'x');  // does not fit the window of a stream that nobody reads
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < 16; ++i) calls.push_back(Begin("/Echo", large));
  EXPECT_TRUE(Eventually([&] { return polling(1) == 1; }));
  absl::SleepFor(absl::FromChrono(3 * Pollers::kPatience));
  EXPECT_EQ(polling(1), 1);
  for (const auto& call : calls) ReadAndFinish(call.get(), large);
  EXPECT_TRUE(Eventually([&] { return done_ == called_; }));
}

}  // namespace
}  // namespace attend::server
