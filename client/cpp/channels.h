// The connections of a client.
#ifndef ATTEND_CLIENT_CPP_CHANNELS_H_
#define ATTEND_CLIENT_CPP_CHANNELS_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "attend/client.h"
#include "client/cpp/token.h"

namespace attend {
inline namespace client {

// Whether the target is on this host: a token sent to it in plain text stays here.
bool IsLocalTarget(absl::string_view target);

// InvalidArgument where target or options make no client.
absl::Status CheckOptions(absl::string_view target, const ClientOptions& options);

// Channels to one target, each with a connection of its own to every server behind it. Thread-safe.
// Outlives its leases.
class ChannelSet {
 public:
  ChannelSet(absl::string_view target, const ClientOptions& options, std::unique_ptr<TokenSource> token);

  // One call's use of a channel.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { Release(); }
    grpc::GenericStub& stub() const { return *stub_; }

   private:
    friend class ChannelSet;
    void Release();
    ChannelSet* set_ = nullptr;
    size_t index_ = 0;
    std::shared_ptr<grpc::GenericStub> stub_;
  };

  // The channel with the fewest calls in flight.
  Lease Take();
  // A channel that also reaches servers that are not serving, for health and information.
  const std::shared_ptr<grpc::Channel>& admin() const { return admin_; }
  // The bearer token to send now; empty: none.
  std::string token() const { return token_->Get(); }

 private:
  struct Entry {
    std::shared_ptr<grpc::GenericStub> stub;
    int64_t in_flight = 0;
  };
  std::shared_ptr<grpc::Channel> NewChannel(bool health_check) const;

  const std::string target_;
  const ClientOptions options_;
  const std::unique_ptr<TokenSource> token_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::shared_ptr<grpc::Channel> admin_;
  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace attend

#endif  // ATTEND_CLIENT_CPP_CHANNELS_H_
