// Turns the fields of a request into a Call, or says everything that is wrong with them. Pure.
#ifndef ATTEND_SERVER_WIRE_VALIDATE_H_
#define ATTEND_SERVER_WIRE_VALIDATE_H_

#include "kernels/call.h"
#include "server/wire/limits.h"
#include "server/wire/request_fields.h"
#include "server/wire/violations.h"

namespace attend::server {

// Adds every violation; where violations is empty afterwards, call is valid in the sense of
// kernels/call.h: every product of its sizes fits int64, and each tensor's data has its exact size.
// Reads no tensor data: that mask bytes are 0 or 1 is checked later.
void ValidateRequest(const RequestFields& fields, const DecodeLimits& limits, Call* call,
                     ViolationList* violations);

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_VALIDATE_H_
