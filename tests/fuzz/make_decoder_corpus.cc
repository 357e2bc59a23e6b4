// Writes the decoder fuzzer's seeds: small valid requests, in protobuf's order and in others.
// Usage: attend_decoder_corpus tests/fuzz/corpus/decoder
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/wire/wire_testing.h"

int main(int argc, char** argv) {
  using namespace attend::server;  // NOLINT(google-build-using-namespace)
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  constexpr size_t kSeedBytesMax = 500;
  constexpr int kSeeds = 32;
  Rng rng(19);
  for (int seeds = 0; seeds < kSeeds;) {
    const attend::v1::AttendRequest request = RandomRequest(rng);
    const bool shuffled = seeds % 2 == 1;
    const std::string message = shuffled ? ShuffledSerialize(request, rng) : request.SerializeAsString();
    if (message.size() > kSeedBytesMax || request.q_data().empty()) continue;
    std::ofstream file(absl::StrCat(argv[1], "/", shuffled ? "shuffled" : "ordered", "-", seeds),
                       std::ios::binary);
    file << message;
    ++seeds;
  }
  return 0;
}
