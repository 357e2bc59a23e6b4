#include "server/wire/tensor_checks.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attend/v1/types.pb.h"

namespace attend::server {
namespace {

std::string DtypeName(int32_t dtype) {
  const std::string& name = v1::DataType_Name(static_cast<v1::DataType>(dtype));
  return name.empty() ? absl::StrCat("value ", dtype, ", which this server does not know") : name;
}

}  // namespace

std::optional<int64_t> Product(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) return std::nullopt;
  }
  return product;
}

std::string ShapePath(TensorId id) { return absl::StrCat(SpecName(id), ".shape"); }

bool TensorChecks::RequireSpec(TensorId id) {
  if (f_.tensor(id).has_spec) return true;
  violations_.Add(SpecName(id), "is required");
  return false;
}

void TensorChecks::CheckStrayData() {
  for (size_t i = 0; i < kTensorCount; ++i) {
    const auto id = static_cast<TensorId>(i);
    const TensorField& t = f_.tensor(id);
    if (!t.has_spec && t.data_bytes > 0) {
      violations_.Add(DataName(id), "has ", t.data_bytes, " bytes, but there is no ", SpecName(id),
                      " to say what they are");
    }
  }
}

bool TensorChecks::CheckDtype(TensorId id, std::initializer_list<int32_t> supported) {
  const TensorField& t = f_.tensor(id);
  if (!t.has_spec) return false;
  if (std::find(supported.begin(), supported.end(), t.dtype) != supported.end()) return true;
  violations_.Add(absl::StrCat(SpecName(id), ".dtype"), "is ", DtypeName(t.dtype),
                  "; supported: ", absl::StrJoin(supported, ", ", [](std::string* out, int32_t dtype) {
                    out->append(DtypeName(dtype));
                  }));
  return false;
}

bool TensorChecks::CheckSameDtype(TensorId id) {
  const TensorField& t = f_.tensor(id);
  const int32_t q_dtype = f_.tensor(TensorId::kQ).dtype;
  if (!t.has_spec) return false;
  if (t.dtype == q_dtype) return true;
  violations_.Add(absl::StrCat(SpecName(id), ".dtype"), "is ", DtypeName(t.dtype), "; must be that of q, ",
                  DtypeName(q_dtype));
  return false;
}

bool TensorChecks::CheckRank(TensorId id, int rank_min, int rank_max) {
  const int64_t rank = f_.tensor(id).rank;
  if (rank >= rank_min && rank <= rank_max) return true;
  violations_.Add(ShapePath(id), "has ", rank, " sizes; must have ", rank_min,
                  rank_max > rank_min ? absl::StrCat(" or ", rank_max) : "");
  return false;
}

bool TensorChecks::CheckSizes(TensorId id) {
  const TensorField& t = f_.tensor(id);
  bool ok = true;
  for (int64_t i = 0; i < t.rank; ++i) {
    const int64_t size = t.shape[static_cast<size_t>(i)];
    if (size >= 0) continue;
    violations_.AddAt(ShapePath(id), i, "is ", size, "; must be 0 or more");
    ok = false;
  }
  // Four bytes: the largest element.
  const auto at = [&t](int64_t i) { return i < t.rank ? t.shape[static_cast<size_t>(i)] : 1; };
  if (ok && !Product({at(0), at(1), at(2), at(3), 4})) {
    violations_.Add(ShapePath(id), "multiplies to more than 2^63 bytes");
    ok = false;
  }
  return ok;
}

bool TensorChecks::CheckData(TensorId id, int64_t element_bytes) {
  const TensorField& t = f_.tensor(id);
  int64_t bytes = element_bytes;
  for (int64_t i = 0; i < t.rank; ++i) bytes *= t.shape[static_cast<size_t>(i)];
  if (t.data_bytes == bytes) return true;
  const auto shape = std::span(t.shape).first(static_cast<size_t>(t.rank));
  violations_.Add(DataName(id), "has ", t.data_bytes, " bytes; shape [", absl::StrJoin(shape, ","), "] of ",
                  element_bytes, "-byte elements needs ", bytes);
  return false;
}

}  // namespace attend::server
