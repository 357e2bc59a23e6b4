// What is wrong with a request, gathered while it is read and checked.
#ifndef ATTEND_SERVER_WIRE_VIOLATIONS_H_
#define ATTEND_SERVER_WIRE_VIOLATIONS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/error.h"

namespace attend::server {

// The field path that stands for the request itself.
inline constexpr absl::string_view kRequestPath = "AttendRequest";

// Bounded: a request with a million faults costs no more than one with kListed. Not thread-safe.
class ViolationList {
 public:
  static constexpr size_t kListed = 64;  // the rest are only counted

  // field is a proto path ("q.shape[2]"); parts make the sentence.
  template <typename... Parts>
  void Add(absl::string_view field, const Parts&... parts) {
    if (listed_.size() == kListed) {
      ++unlisted_;
      return;
    }
    listed_.push_back({std::string(field), absl::StrCat(parts...)});
  }

  // The same for element `index` of a list, whose path is made only when it is kept.
  template <typename... Parts>
  void AddAt(absl::string_view list, int64_t index, const Parts&... parts) {
    if (listed_.size() == kListed) {
      ++unlisted_;
      return;
    }
    listed_.push_back({absl::StrCat(list, "[", index, "]"), absl::StrCat(parts...)});
  }

  bool empty() const { return listed_.empty(); }
  size_t size() const { return listed_.size() + static_cast<size_t>(unlisted_); }

  // OK when empty, else InvalidRequest. Leaves the list empty.
  absl::Status Take() {
    if (listed_.empty()) return absl::OkStatus();
    if (unlisted_ > 0)
      listed_.push_back({std::string(kRequestPath), absl::StrCat(unlisted_, " more faults")});
    unlisted_ = 0;
    return InvalidRequest(std::exchange(listed_, {}));
  }

 private:
  std::vector<Violation> listed_;
  int64_t unlisted_ = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_VIOLATIONS_H_
