#include "weights/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "weights/testing/temp_dir.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::byte> Counting(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(SafetensorsWriter, WritesTheBytesOfTheFormat) {
  const TempDir dir;
  const auto data = Counting(6);
  ASSERT_TRUE(WriteSafetensors(dir.path() / "o.safetensors",
                               std::vector<OutputTensor>{{"t", DType::kBF16, {3}, data}})
                  .ok());
  const std::string header = R"({"t":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const char length = static_cast<char>(header.size() + padding.size());
  EXPECT_EQ(ReadFile(dir.path() / "o.safetensors"), std::string(1, length) + std::string(7, '\0') +
                                                        header + padding +
                                                        std::string("\0\1\2\3\4\5", 6));
}

TEST(SafetensorsWriter, WhatItWritesTheStoreReads) {
  const TempDir dir;
  const fs::path path = dir.path() / "o.safetensors";
  const auto data = Counting(24);
  const std::span<const std::byte> bytes(data);
  const std::vector<OutputTensor> tensors = {
      {"odd", DType::kU8, {3}, bytes.first(3)},
      {"m", DType::kF32, {2, 3}, bytes},
      {"none", DType::kF32, {0, 4}, {}},
      {"s", DType::kI64, {}, bytes.first(8)},
      {"quote\" and \xc3\xa9", DType::kF16, {1}, bytes.first(2)},
  };
  ASSERT_TRUE(WriteSafetensors(path, tensors, {{"format", "pt"}}).ok());
  const auto store = WeightStore::Open(path);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ((*store)->safetensors_metadata().at("format"), "pt");
  ASSERT_EQ((*store)->tensors().size(), tensors.size());
  for (const OutputTensor& tensor : tensors) {
    const TensorInfo* read = (*store)->Find(tensor.name);
    ASSERT_NE(read, nullptr) << tensor.name;
    EXPECT_EQ(read->dtype, tensor.dtype);
    EXPECT_EQ(read->shape, tensor.shape);
    EXPECT_EQ(read->offset % static_cast<uint64_t>(InfoOf(tensor.dtype).block_bytes), 0u);
    const auto got = (*store)->Bytes(*read);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), tensor.data.begin(), tensor.data.end()));
  }
}

TEST(SafetensorsWriter, ReplacesWholeFilesAndLeavesNothingBehind) {
  const TempDir dir;
  const fs::path path = dir.Write("o.safetensors", "old");
  EXPECT_TRUE(WriteSafetensors(path, {}).ok());
  EXPECT_TRUE(WeightStore::Open(path).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
  EXPECT_TRUE(WriteSafetensors("/dev/null", {}).ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(SafetensorsWriter, SaysWhatCannotBeWritten) {
  const TempDir dir;
  const auto data = Counting(36);
  const auto expect = [&](const fs::path& path, std::vector<OutputTensor> tensors,
                          const char* message) {
    const Status status = WriteSafetensors(path, tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(path.string() + ": "));
    EXPECT_THAT(status.message(), HasSubstr(message));
  };
  const fs::path path = dir.path() / "o";
  expect(dir.path(), {}, "cannot be written: Is a directory");
  expect(dir.path() / "none" / "o", {}, "cannot be written: No such file or directory");
  expect("/dev/full", {{"t", DType::kU8, {36}, data}}, "cannot be written: No space left");
  expect(path, {{"t", DType::kF32, {8}, data}},
         "tensor 't' [8] was given 36 bytes, 32 was expected");
  expect(path, {{"t", DType::kF32, {-9}, data}}, "another number was expected");
  expect(path, {{"t", DType::kQ8_1, {32}, data}}, "tensor 't' is Q8_1, which safetensors files do");
  expect(path, {{"t", DType::kU8, {36}, data}, {"t", DType::kU8, {36}, data}}, "was given twice");
  expect(path, {{"__metadata__", DType::kU8, {36}, data}}, "has a name that the format reserves");
  expect(path, {{"\xff", DType::kU8, {36}, data}}, "is not UTF-8");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace sixfold
