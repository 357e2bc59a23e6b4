// Safetensors files: what is written is read back, and what the format forbids is refused.
#include "client/cli/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attend::cli {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

std::string Error(const std::string& header, const std::string& data) {
  const auto file = Safetensors::Parse(File(header, data));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << header;
  return std::string(file.status().message());
}

TEST(Safetensors, ReadsWhatItWrote) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attend-roundtrip-", getpid(), ".safetensors");
  const std::vector<float> q = {1, -2, 3, 4, 5, 6};
  const std::vector<uint8_t> mask = {1, 0, 1};
  ASSERT_TRUE(WriteSafetensors(path,
                               {{"q", {DataType::kFp32, {1, 2, 3}, q.data()}},
                                {"mask", {DataType::kBool, {3}, mask.data()}},
                                {"none", {DataType::kBf16, {0, 7}, nullptr}}},
                               {{"kernel", "flash"}})
                  .ok());
  const auto file = Safetensors::Read(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("kernel"), "flash");
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->Find("q")->shape, (Shape{1, 2, 3}));
  EXPECT_EQ(std::memcmp(file->Find("q")->data, q.data(), 24), 0);
  EXPECT_EQ(file->Find("mask")->dtype, DataType::kBool);
  EXPECT_EQ(file->Find("none")->shape, (Shape{0, 7}));
  EXPECT_EQ(file->Find("k"), nullptr);
}

TEST(Safetensors, ReadsWhatThePythonScriptWrote) {
  const auto file = Safetensors::Read("tests/data/minilm/layer0.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("q")->shape, file->Find("out")->shape);
  EXPECT_EQ(file->Find("k")->shape[1], 12);
}

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234"),
              HasSubstr("a [2] has 4"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "123"),
              HasSubstr("of 3 bytes"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"),
              HasSubstr("4 to 0"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "1234"),
              HasSubstr("data_offsets"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                    "123456"),
              HasSubstr("b overlaps"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"),
              HasSubstr("gap"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "12345"),
              HasSubstr("belong to none"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "12345678"),
              HasSubstr("F64"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"),
              HasSubstr("a.shape"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
              HasSubstr("has 0 bytes"));
  EXPECT_THAT(Error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                    "1234"),
              HasSubstr("comes twice"));
  EXPECT_THAT(Error(R"({"__metadata__":{"x":1}})", ""), HasSubstr("not a string"));
  EXPECT_THAT(Error("[]", ""), HasSubstr("JSON object"));
  EXPECT_THAT(Error("{", ""), HasSubstr("JSON object"));
  EXPECT_THAT(Error(R"({"a":1})", ""), HasSubstr("not an object"));
}

TEST(Safetensors, RefusesHeadersThatAreTooLarge) {
  std::string bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  EXPECT_THAT(std::string(Safetensors::Parse(bytes).status().message()), HasSubstr("100000000"));
  bytes = std::string("\x40\0\0\0\0\0\0\0{}", 10);
  EXPECT_THAT(std::string(Safetensors::Parse(bytes).status().message()), HasSubstr("in a file of 10"));
  EXPECT_FALSE(Safetensors::Parse("").ok());
}

TEST(Safetensors, NamesTheFileThatIsMissing) {
  const auto status = Safetensors::Read("no/such/file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no/such/file"));
}

// Whatever the bytes are: an error, or tensors that lie inside them (which a sanitizer checks by the reads).
TEST(Safetensors, AnyBytesAreRefusedOrLieInBounds) {
  const std::string good = File(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
                                std::string(32, 'x'));
  ASSERT_TRUE(Safetensors::Parse(good).ok());
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (unsigned edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "0123456789[]{},:\""[random() % 17];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 3);
          break;
        case 3:
          bytes.insert(at, 1, bytes[random() % bytes.size()]);
      }
    }
    const auto file = Safetensors::Parse(bytes);
    if (!file.ok()) continue;
    ++accepted;
    unsigned sum = 0;
    for (const auto& [name, tensor] : file->tensors()) {
      const auto* data = static_cast<const unsigned char*>(tensor.data);
      const int64_t size = *ByteSize(tensor.dtype, tensor.shape);
      for (int64_t b = 0; b < size; ++b) sum += data[b];
    }
    EXPECT_LE(sum, 255u * 40);
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace attend::cli
