// What a caller may say about its request in metadata, checked before it is logged or sent back.
#ifndef ATTEND_SERVER_PROCESS_REQUEST_ID_H_
#define ATTEND_SERVER_PROCESS_REQUEST_ID_H_

#include <string>

#include "absl/strings/string_view.h"

namespace attend::server {

inline constexpr absl::string_view kRequestIdKey = "x-request-id";
inline constexpr absl::string_view kTraceparentKey = "traceparent";
// The exact size of the request message, in bytes. Sent by clients that know it, so that the server can
// set memory aside before the message arrives.
inline constexpr absl::string_view kRequestBytesKey = "attend-request-bytes";

// 1 to 128 printable ASCII characters, no spaces.
bool IsRequestId(absl::string_view text);
// The W3C form: 00-<32 hex>-<16 hex>-<2 hex>, in lower case, ids not all zero.
bool IsTraceparent(absl::string_view text);
// 32 hexadecimal digits, different for each call.
std::string NewRequestId();

}  // namespace attend::server

#endif  // ATTEND_SERVER_PROCESS_REQUEST_ID_H_
