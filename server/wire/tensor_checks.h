// What can be wrong with one tensor of a request, apart from what it means for the call.
#ifndef ATTEND_SERVER_WIRE_TENSOR_CHECKS_H_
#define ATTEND_SERVER_WIRE_TENSOR_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "server/wire/request_fields.h"
#include "server/wire/violations.h"

namespace attend::server {

// The product of sizes, none negative, or nothing where it passes int64. Zeros count as ones, so that
// partial products (strides) fit as well.
std::optional<int64_t> Product(std::initializer_list<int64_t> sizes);

std::string ShapePath(TensorId id);  // "q.shape"

// Each check adds what it finds to the violations and returns whether it found nothing.
class TensorChecks {
 public:
  // Both outlive the checks.
  TensorChecks(const RequestFields& fields, ViolationList* violations)
      : f_(fields), violations_(*violations) {}

  bool RequireSpec(TensorId id);
  // Values of attend.v1.DataType. False, without a violation, where there is no spec.
  bool CheckDtype(TensorId id, std::initializer_list<int32_t> supported);
  bool CheckSameDtype(TensorId id);  // as q's
  bool CheckRank(TensorId id, int rank_min, int rank_max);
  // No size is negative, and their product in bytes fits int64. After CheckRank.
  bool CheckSizes(TensorId id);
  // The data has exactly the bytes that the shape says. After CheckSizes.
  bool CheckData(TensorId id, int64_t element_bytes);
  // Of all tensors: no data without a spec.
  void CheckStrayData();

 private:
  const RequestFields& f_;
  ViolationList& violations_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_WIRE_TENSOR_CHECKS_H_
