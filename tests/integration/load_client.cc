// A client process that loads a server in one of several ways; tests start several of them.
//
//   load_client TARGET digest SEED REQUESTS CONCURRENCY   prints "index digest batch_requests" of each
//   load_client TARGET storm SEED REQUESTS CONCURRENCY    cancels and times out at random
//   load_client TARGET count SEED REQUESTS CONCURRENCY    no retries; prints what became of each
//   load_client TARGET hold SEED REQUESTS CONCURRENCY     large requests, until it is killed
//   load_client TARGET long SEED REQUESTS CONCURRENCY     requests of 10^12 FLOPs
//   load_client TARGET small SEED REQUESTS CONCURRENCY    small requests
//
// Every mode but digest and hold ends with "CODE count" lines; REQUESTS 0 goes on until the server is gone.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "attend/client.h"

namespace {

// A request with random tensors in memory of its own; a function of its seed.
struct Owned {
  attend::Request request;
  std::vector<std::vector<uint16_t>> halves;
  std::vector<std::vector<float>> floats;
};

attend::TensorView RandomTensor(attend::DataType dtype, const attend::Shape& shape, std::mt19937& random,
                                Owned* owned) {
  int64_t elements = 1;
  for (const int64_t n : shape) elements *= n;
  if (dtype == attend::DataType::kFp32) {
    std::vector<float>& data = owned->floats.emplace_back(elements);
    for (float& f : data) f = static_cast<float>(random() % 2001) / 500.0f - 2.0f;
    return {dtype, shape, data.data()};
  }
  std::vector<uint16_t>& data = owned->halves.emplace_back(elements);
  for (uint16_t& bits : data) {
    const float value = static_cast<float>(random() % 2001) / 500.0f - 2.0f;
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = static_cast<uint16_t>(wide >> 16);  // bf16
  }
  return {dtype, shape, data.data()};
}

std::unique_ptr<Owned> MakeRequest(uint32_t seed, const attend::Shape& q, const attend::Shape& kv) {
  std::mt19937 random(seed);
  auto owned = std::make_unique<Owned>();
  attend::Request& r = owned->request;
  const auto dtype = random() % 2 == 0 ? attend::DataType::kFp32 : attend::DataType::kBf16;
  r.q = RandomTensor(dtype, q, random, owned.get());
  r.k = RandomTensor(dtype, kv, random, owned.get());
  r.v = RandomTensor(dtype, kv, random, owned.get());
  r.causal = random() % 2 == 0 ? attend::Causal::kNone : attend::Causal::kBottomRight;
  const attend::Kernel kernels[] = {attend::Kernel::kAuto, attend::Kernel::kAuto, attend::Kernel::kNaive,
                                    attend::Kernel::kOnline};
  r.kernel = kernels[random() % 4];
  r.return_lse = random() % 2 == 0;
  if (random() % 3 == 0) r.window_left = random() % 64;
  return owned;
}

std::unique_ptr<Owned> MixedRequest(uint32_t seed) {
  std::mt19937 random(seed ^ 0x9e3779b9u);
  const int64_t kv_heads = 1 + random() % 2, batch = 1 + random() % 2;
  const int64_t q_heads = kv_heads * (1 + random() % 4);
  return MakeRequest(seed, {batch, q_heads, 1 + static_cast<int64_t>(random() % 150), 64},
                     {batch, kv_heads, 1 + static_cast<int64_t>(random() % 300), 64});
}

// FNV-1a over the bytes of every result.
uint64_t Digest(const attend::Response& response) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](const attend::Tensor& tensor) {
    for (const std::byte b : tensor.bytes()) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  };
  add(response.out);
  if (response.lse) add(*response.lse);
  return hash;
}

class Load {
 public:
  Load(attend::Client* client, std::string mode, uint32_t seed, int64_t requests)
      : client_(client), mode_(std::move(mode)), seed_(seed), requests_(requests) {}

  // One of the concurrent callers.
  void Run(uint32_t caller) {
    std::mt19937 random(seed_ * 1000 + caller);
    while (!gone_) {
      const int64_t i = next_++;
      if (requests_ > 0 && i >= requests_) return;
      attend::CallOptions options;
      std::unique_ptr<Owned> owned;
      std::thread canceller;
      if (mode_ == "hold") {
        owned = MakeRequest(seed_ + i, {1, 8, 1024, 64}, {1, 8, 1024, 64});
      } else if (mode_ == "long") {
        owned = MakeRequest(seed_ + i, {1, 4, 32768, 64}, {1, 4, 32768, 64});
        owned->request.kernel = attend::Kernel::kFlash;
        owned->request.causal = attend::Causal::kNone;
        owned->request.window_left.reset();
      } else if (mode_ == "small") {
        owned = MakeRequest(seed_ + i % 64, {1, 2, 4, 64}, {1, 2, 8, 64});
      } else if (mode_ == "storm" && i % 8 == 0) {
        owned = MakeRequest(seed_ + i, {1, 8, 1024, 64}, {1, 8, 1024, 64});  // its copies take a while
      } else {
        owned = MixedRequest(seed_ + static_cast<uint32_t>(i));
      }
      if (mode_ == "storm") {
        if (random() % 2 == 0) options.timeout = absl::Microseconds(1 + random() % 5000);
        if (random() % 3 == 0) {
          options.cancel.emplace();
          canceller = std::thread([token = *options.cancel, wait = random() % 3000]() mutable {
            std::this_thread::sleep_for(std::chrono::microseconds(wait));
            token.Cancel();
          });
        }
      }
      const absl::StatusOr<attend::Response> response = client_->Attend(owned->request, options);
      if (canceller.joinable()) canceller.join();
      Note(i, response);
    }
  }

  void PrintCounts() {
    for (const auto& [code, count] : counts_) std::printf("%s %ld\n", code.c_str(), static_cast<long>(count));
  }

 private:
  void Note(int64_t i, const absl::StatusOr<attend::Response>& response) {
    const bool unavailable = absl::IsUnavailable(response.status());
    if (requests_ == 0 && unavailable) gone_ = true;
    absl::MutexLock lock(&mutex_);
    ++counts_[absl::StatusCodeToString(response.status().code())];
    if (mode_ == "digest") {
      if (response.ok()) {
        std::printf("%ld %016lx %ld\n", static_cast<long>(i), static_cast<unsigned long>(Digest(*response)),
                    static_cast<long>(response->report.batch_requests));
      } else {
        std::printf("%ld %s\n", static_cast<long>(i), attend::Describe(response.status()).c_str());
      }
    } else if ((mode_ == "small" && !response.ok()) || (mode_ == "storm" && unavailable)) {
      std::fprintf(stderr, "%s\n", attend::Describe(response.status()).c_str());
    }
  }

  attend::Client* const client_;
  const std::string mode_;
  const uint32_t seed_;
  const int64_t requests_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> gone_{false};
  absl::Mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: load_client TARGET MODE SEED REQUESTS CONCURRENCY\n", stderr);
    return 2;
  }
  const std::string mode = argv[2];
  attend::ClientOptions options;
  options.health_check = false;
  if (mode != "digest") options.retry.attempts_max = 1;
  auto client = attend::Client::Create(argv[1], options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", attend::Describe(client.status()).c_str());
    return 1;
  }
  Load load(client->get(), mode, static_cast<uint32_t>(std::atoll(argv[3])), std::atoll(argv[4]));
  std::vector<std::thread> callers;
  for (int c = 0; c < std::atoi(argv[5]); ++c) callers.emplace_back([&load, c] { load.Run(c); });
  for (std::thread& t : callers) t.join();
  if (mode != "digest") load.PrintCounts();
  return 0;
}
