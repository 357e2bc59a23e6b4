// Sends requests over and over, each as soon as the one before is answered, until it is killed.
// Usage: flood_client TARGET HEADS LENGTH
#include <cstdio>
#include <cstdlib>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "tests/integration/raw_client.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s TARGET HEADS LENGTH\n", argv[0]);
    return 2;
  }
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), args);
  const std::string request =
      attend::integration::SimpleRequest(std::atoll(argv[2]), std::atoll(argv[3])).SerializeAsString();
  for (;;) attend::integration::Call(channel, request);
}
