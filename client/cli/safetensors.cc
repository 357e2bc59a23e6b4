#include "client/cli/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/cli/files.h"

namespace attend::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kSizeBytes = 8;

constexpr std::pair<DataType, const char*> kNames[] = {
    {DataType::kFp32, "F32"}, {DataType::kFp16, "F16"}, {DataType::kBf16, "BF16"}, {DataType::kBool, "BOOL"}};

// A tensor's bytes in the data section.
struct Extent {
  uint64_t begin = 0, end = 0;
  std::string name;
};

absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a valid safetensors file: ", what));
}

// Parses the header; a key that comes twice in one object is an error, where JSON itself shrugs.
absl::StatusOr<Json> ParseHeader(absl::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  Json header = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) return Invalid("the header is not a JSON object");
  if (!twice.empty()) return Invalid(absl::StrCat("the key \"", twice, "\" comes twice"));
  return header;
}

absl::StatusOr<Shape> ParseShape(const std::string& name, const Json& entry) {
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return Invalid(absl::StrCat(name, " has no shape"));
  Shape sizes;
  for (const Json& size : *shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return Invalid(absl::StrCat(name, ".shape is not a list of sizes"));
    }
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

absl::StatusOr<DataType> ParseDataType(const std::string& name, const Json& entry) {
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Invalid(absl::StrCat(name, " has no dtype"));
  for (const auto& [type, text] : kNames) {
    if (*dtype == text) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", dtype->get<std::string>(), "; supported are F32, F16, BF16 and BOOL"));
}

absl::StatusOr<Extent> ParseExtent(const std::string& name, const Json& entry, uint64_t data_bytes) {
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Invalid(absl::StrCat(name, " has no data_offsets [begin, end]"));
  }
  const Extent extent = {(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>(), name};
  if (extent.begin > extent.end || extent.end > data_bytes) {
    return Invalid(
        absl::StrCat(name, " lies at ", extent.begin, " to ", extent.end, " of ", data_bytes, " bytes"));
  }
  return extent;
}

absl::Status CheckCoverage(std::vector<Extent> extents, uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < covered) return Invalid(absl::StrCat(extent.name, " overlaps another tensor"));
    if (extent.begin > covered) return Invalid(absl::StrCat("there is a gap before ", extent.name));
    covered = extent.end;
  }
  if (covered != data_bytes) {
    return Invalid(absl::StrCat(data_bytes - covered, " bytes behind the last tensor belong to none"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Safetensors> Safetensors::Parse(std::string bytes) {
  Safetensors file;
  file.bytes_ = std::make_unique<const std::string>(std::move(bytes));
  const std::string& all = *file.bytes_;
  uint64_t header_bytes = 0;
  if (all.size() < kSizeBytes) return Invalid("shorter than its 8-byte header size");
  std::memcpy(&header_bytes, all.data(), kSizeBytes);
  if (header_bytes > kHeaderBytesMax) {
    return Invalid(
        absl::StrCat("a header of ", header_bytes, " bytes; at most ", kHeaderBytesMax, " are allowed"));
  }
  if (header_bytes > all.size() - kSizeBytes) {
    return Invalid(absl::StrCat("a header of ", header_bytes, " bytes in a file of ", all.size()));
  }
  const absl::StatusOr<Json> header = ParseHeader(absl::string_view(all).substr(kSizeBytes, header_bytes));
  if (!header.ok()) return header.status();

  const char* const data = all.data() + kSizeBytes + header_bytes;
  const uint64_t data_bytes = all.size() - kSizeBytes - header_bytes;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header->items()) {
    if (!entry.is_object()) return Invalid(absl::StrCat(name, " is not an object"));
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return Invalid(absl::StrCat("__metadata__.", key, " is not a string"));
        file.metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    const auto extent = ParseExtent(name, entry, data_bytes);
    if (!extent.ok()) return extent.status();
    const auto dtype = ParseDataType(name, entry);
    if (!dtype.ok()) return dtype.status();
    auto shape = ParseShape(name, entry);
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<int64_t> size = ByteSize(*dtype, *shape);
    if (!size.ok() || static_cast<uint64_t>(*size) != extent->end - extent->begin) {
      return Invalid(
          absl::StrCat(name, " ", ToString(*shape), " has ", extent->end - extent->begin, " bytes"));
    }
    file.tensors_[name] = {*dtype, *std::move(shape), data + extent->begin};
    extents.push_back(*extent);
  }
  const absl::Status coverage = CheckCoverage(std::move(extents), data_bytes);
  if (!coverage.ok()) return coverage;
  return file;
}

absl::StatusOr<Safetensors> Safetensors::Read(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<Safetensors> file = Parse(*std::move(bytes));
  if (!file.ok())
    return absl::Status(file.status().code(), absl::StrCat(path, ": ", file.status().message()));
  return file;
}

const TensorView* Safetensors::Find(absl::string_view name) const {
  const auto it = tensors_.find(std::string(name));
  return it == tensors_.end() ? nullptr : &it->second;
}

namespace {

// Written whole beside the file that it then replaces.
std::string PartialPath(const std::string& path) { return absl::StrCat(path, ".partial.", getpid()); }

absl::Status FileError(const std::string& path, const char* what, int error) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", what, ": ", std::strerror(error)));
}

}  // namespace

absl::Status CheckCreatable(const std::string& path) {
  // The new file takes the place of the old one, which must not be a device such as /dev/null.
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    if (S_ISDIR(found.st_mode)) return FileError(path, "cannot be created", EISDIR);
    return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be replaced: is no regular file"));
  }
  const std::string partial = PartialPath(path);
  if (!std::ofstream(partial, std::ios::binary | std::ios::trunc)) {
    return FileError(path, "cannot be created", errno);
  }
  std::remove(partial.c_str());
  return absl::OkStatus();
}

absl::Status WriteSafetensors(const std::string& path,
                              const std::vector<std::pair<std::string, TensorView>>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const absl::StatusOr<int64_t> size = ByteSize(tensor.dtype, tensor.shape);
    if (!size.ok()) return size.status();
    const char* dtype = "";
    for (const auto& [type, text] : kNames) {
      if (type == tensor.dtype) dtype = text;
    }
    header[name] = {{"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *size}}};
    offset += *size;
  }
  std::string text = header.dump();
  text.append((kSizeBytes - text.size() % kSizeBytes) % kSizeBytes, ' ');  // data begins aligned

  const std::string partial = PartialPath(path);
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  const auto fail = [&](const char* what) {
    const int error = errno;
    std::remove(partial.c_str());
    return FileError(path, what, error);
  };
  if (!stream) return fail("cannot be created");
  const uint64_t header_bytes = text.size();
  stream.write(reinterpret_cast<const char*>(&header_bytes), kSizeBytes);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    stream.write(static_cast<const char*>(tensor.data), *ByteSize(tensor.dtype, tensor.shape));
  }
  stream.close();
  if (!stream) return fail("cannot be written");
  if (std::rename(partial.c_str(), path.c_str()) != 0) return fail("cannot be put in place");
  return absl::OkStatus();
}

}  // namespace attend::cli
