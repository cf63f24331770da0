#include "weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>

#include "base/testing/cases.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/safetensors_bytes.h"
#include "weights/testing/temp_dir.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Message(const fs::path& path) {
  const auto store = WeightStore::Open(path);
  if (store.ok()) return "opened";
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidFile) << store.status().ToString();
  return store.status().message();
}

// One F32 tensor [count] of a byte.
std::string Shard(const std::string& name, int count, char fill) {
  return SafetensorsBytes("{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" +
                              std::to_string(count) + "],\"data_offsets\":[0," +
                              std::to_string(4 * count) + "]}}",
                          std::string(static_cast<size_t>(4 * count), fill));
}

constexpr char kIndex[] = R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";

TEST(WeightStore, OpensFoldersShardsAndSingleFiles) {
  const TempDir dir;
  dir.Write("m-1.safetensors", Shard("a", 3, '\1'));
  dir.Write("m-2.safetensors", Shard("b", 5, '\2'));
  const fs::path index = dir.Write("model.safetensors.index.json", kIndex);
  for (const fs::path& path : {dir.path(), index}) {
    const auto store = WeightStore::Open(path);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const WeightStore& s = **store;
    EXPECT_EQ(s.format(), WeightStore::Format::kSafetensors);
    EXPECT_EQ(s.gguf(), nullptr);
    ASSERT_EQ(s.tensors().size(), 2u);
    const TensorInfo* b = s.Find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(fs::path(s.FileName(*b)).filename(), "m-2.safetensors");
    EXPECT_EQ(s.Bytes(*b).size(), 20u);
    EXPECT_EQ(s.Bytes(*b)[19], std::byte{2});
    EXPECT_EQ(s.Find("c"), nullptr);
    EXPECT_THAT(s.Require("c").status().message(),
                HasSubstr("tensor 'c' is missing (2 tensors in"));
    EXPECT_EQ((*s.Require("b")), b);
  }
  const auto one = WeightStore::Open(dir.path() / "m-1.safetensors");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)->tensors().size(), 1u);
  // A folder that has both is read as transformers does: the single file first.
  dir.Write("model.safetensors", Shard("z", 1, '\3'));
  const auto both = WeightStore::Open(dir.path());
  ASSERT_TRUE(both.ok());
  EXPECT_NE((*both)->Find("z"), nullptr);
  EXPECT_EQ((*both)->tensors().size(), 1u);
}

TEST(WeightStore, RefusesAnIndexThatNamesWhatIsNotThere) {
  const TempDir dir;
  const fs::path index = dir.Write("model.safetensors.index.json", kIndex);
  dir.Write("m-1.safetensors", Shard("a", 3, '\1'));
  EXPECT_THAT(Message(dir.path()), HasSubstr("names this shard: "));
  EXPECT_THAT(Message(dir.path()), HasSubstr("m-2.safetensors: cannot be opened: No such file"));
  dir.Write("m-2.safetensors", "");
  EXPECT_THAT(Message(dir.path()), HasSubstr("m-2.safetensors: is empty"));
  dir.Write("m-2.safetensors", Shard("extra", 5, '\2'));
  EXPECT_THAT(Message(dir.path()), HasSubstr("tensor 'b' is listed for shard 'm-2.safetensors'"));
  dir.Write("m-2.safetensors", SafetensorsBytes("{}", ""));
  EXPECT_THAT(
      Message(dir.path()),
      HasSubstr("tensor 'b' is listed for shard 'm-2.safetensors', which does not hold it"));
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"a":"../m-1.safetensors"}})");
  EXPECT_THAT(Message(dir.path()), HasSubstr("a plain name ending in .safetensors was expected"));
}

// A shard of F32 tensors [1], each filled with a byte.
std::string ShardOf(const std::vector<std::pair<std::string, char>>& tensors) {
  std::string header, data;
  for (const auto& [name, fill] : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + name +
              "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + 4) + "]}";
    data += std::string(4, fill);
  }
  return SafetensorsBytes(header + "}", data);
}

TEST(WeightStore, TakesATensorFromWhereTheIndexSaysAndKeepsUnlistedOnes) {
  const TempDir dir;
  dir.Write("m-1.safetensors", ShardOf({{"a", '1'}, {"b", '1'}, {"extra", '1'}, {"both", '1'}}));
  dir.Write("m-2.safetensors", ShardOf({{"a", '2'}, {"b", '2'}, {"lost", '2'}, {"both", '2'}}));
  dir.Write("m-3.safetensors", ShardOf({{"a", '3'}, {"b", '3'}, {"c", '3'}}));
  dir.Write(
      "model.safetensors.index.json",
      R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-3.safetensors","lost":"m-3.safetensors"}})");
  const auto store = WeightStore::Open(dir.path());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto byte_of = [&](const char* name) {
    const TensorInfo* tensor = (*store)->Find(name);
    return tensor == nullptr ? '-' : static_cast<char>((*store)->Bytes(*tensor)[3]);
  };
  EXPECT_EQ(byte_of("a"), '1');  // also in shards 2 and 3
  EXPECT_EQ(byte_of("b"), '2');  // also in shards 1 and 3
  EXPECT_EQ(byte_of("c"), '3');
  EXPECT_EQ(byte_of("extra"), '1');  // not listed
  EXPECT_EQ(byte_of("lost"), '2');   // listed for a shard that does not hold it
  EXPECT_EQ(byte_of("both"),
            '2');  // not listed and in two shards: the last one, as transformers loads it
  EXPECT_FALSE((*store)->Find("extra")->listed);
  EXPECT_TRUE((*store)->Find("b")->listed);
  ASSERT_EQ((*store)->tensors().size(), 6u);
  for (size_t i = 1; i < 6; ++i) {  // in the order of their data
    const TensorInfo& before = (*store)->tensors()[i - 1];
    const TensorInfo& after = (*store)->tensors()[i];
    EXPECT_LT(std::pair(before.file, before.offset), std::pair(after.file, after.offset));
    EXPECT_EQ((*store)->Find(after.name), &after);
  }
}

TEST(WeightStore, RefusesWhatIsNoWeightFile) {
  const TempDir dir;
  EXPECT_THAT(Message(dir.path() / "none"), HasSubstr("none: cannot be opened: No such file"));
  EXPECT_THAT(Message(dir.path()), HasSubstr("holds neither model.safetensors nor"));
  dir.Write("lone.gguf", "x");
  EXPECT_THAT(Message(dir.path()), HasSubstr("to use one of its files, name it: lone.gguf"));
  EXPECT_THAT(Message(dir.path() / "lone.gguf"), HasSubstr("begins with 'x', 'GGUF' was expected"));
  EXPECT_THAT(Message(dir.Write("e.safetensors", "")), HasSubstr("is empty (0 bytes)"));
  EXPECT_THAT(Message(dir.Write("e.gguf", "")), HasSubstr("is empty (0 bytes)"));
  EXPECT_THAT(Message(dir.Write("note.txt", "hello, this is text\n")),
              HasSubstr("claims a header"));
  EXPECT_THAT(Message("/dev/null"), HasSubstr("is a device, a regular file was expected"));
  const fs::path pipe = dir.path() / "p.gguf";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(Message(pipe), HasSubstr("is a pipe, a regular file was expected"));
  fs::create_directory(dir.path() / "d.gguf");
  EXPECT_THAT(Message(dir.path() / "d.gguf"), HasSubstr("holds neither model.safetensors"));
  fs::create_directory(dir.path() / "model.safetensors");
  EXPECT_THAT(Message(dir.path()), HasSubstr("is a directory, a regular file was expected"));
  fs::create_symlink("loop", dir.path() / "loop");
  EXPECT_THAT(Message(dir.path() / "loop"), HasSubstr("cannot be opened"));
}

TEST(WeightStore, FollowsLinksReadsModes0600AndKnowsGgufByItsMagic) {
  const TempDir dir;
  const std::string bytes =
      GgufWriter().Tensor({.name = "t", .dims = {2}, .data = "abcdefgh"}).Build();
  const fs::path blob = dir.Write("blob", bytes);
  fs::permissions(blob, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("blob", dir.path() / "link");
  const auto store = WeightStore::Open(dir.path() / "link");
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ((*store)->format(), WeightStore::Format::kGguf);
  ASSERT_NE((*store)->gguf(), nullptr);
  EXPECT_EQ((*store)->file_bytes(), bytes.size());
  EXPECT_EQ((*store)->Bytes((*store)->tensors()[0])[0], std::byte{'a'});
}

std::string Part(uint32_t number, uint32_t count, const std::string& tensor) {
  return GgufWriter()
      .Value("split.no", GgufType::kU16, Le(static_cast<uint16_t>(number)))
      .Value("split.count", GgufType::kU16, Le(static_cast<uint16_t>(count)))
      .Value("split.tensors.count", GgufType::kI32, Le<int32_t>(2))
      .Tensor({.name = tensor, .dims = {1}, .data = "abcd"})
      .Build();
}

TEST(WeightStore, ReadsSplitGgufThroughItsFirstPart) {
  const TempDir dir;
  const fs::path first = dir.Write("m-00001-of-00002.gguf", Part(0, 2, "a"));
  const fs::path second = dir.path() / "m-00002-of-00002.gguf";
  EXPECT_THAT(Message(first), HasSubstr("needs this part: "));
  EXPECT_THAT(Message(first), HasSubstr("m-00002-of-00002.gguf: cannot be opened"));
  dir.Write("m-00002-of-00002.gguf", Part(1, 2, "b"));
  const auto store = WeightStore::Open(first);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ((*store)->FileName(*(*store)->Find("b")), second.string());
  EXPECT_THAT(Message(second), HasSubstr("is part 2 of 2: name the first part instead"));
  dir.Write("m-00002-of-00002.gguf", Part(1, 2, "a"));
  EXPECT_THAT(Message(first), HasSubstr("tensor 'a' is in two files"));
  dir.Write("m-00002-of-00002.gguf", Part(0, 2, "b"));
  EXPECT_THAT(Message(first), HasSubstr("says it is part 1 of 2, part 2 of 2 was expected"));
  dir.Write("m-00002-of-00002.gguf", GgufWriter().Build());
  EXPECT_THAT(Message(first), HasSubstr("key 'split.no' is missing"));
  dir.Write("m-00002-of-00002.gguf", GgufWriter().U32("split.no", 1).U32("split.count", 2).Build());
  EXPECT_THAT(Message(first), HasSubstr("'split.tensors.count' is 2, the parts hold 1 tensor"));
  EXPECT_THAT(Message(dir.Write("renamed.gguf", Part(0, 2, "a"))),
              HasSubstr("a name ending in -00001-of-00002.gguf was expected"));
  EXPECT_THAT(Message(dir.Write("many.gguf", Part(0, 65535, "a"))),
              HasSubstr("key 'split.count' is 65535, at most 9999"));
}

// A store over one safetensors file whose data are zeros.
std::unique_ptr<WeightStore> StoreOf(const TempDir& dir, const std::string& header, size_t bytes) {
  auto store = WeightStore::Open(
      dir.Write("v.safetensors", SafetensorsBytes(header, std::string(bytes, '\0'))));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::move(*store) : nullptr;
}

TEST(WeightStore, MakesViewsOfZeroToThreeDimensions) {
  const TempDir dir;
  const auto s = StoreOf(dir,
                         R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                         R"("v":{"dtype":"F16","shape":[6],"data_offsets":[4,16]},)"
                         R"("m":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},)"
                         R"("e":{"dtype":"BF16","shape":[3,2,4],"data_offsets":[28,76]},)"
                         R"("i":{"dtype":"I32","shape":[2],"data_offsets":[76,84]},)"
                         R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[84,84]}})",
                         84);
  ASSERT_NE(s, nullptr);
  const auto matrix = [&](const char* name) { return s->Matrix(*s->Find(name)); };
  EXPECT_EQ(matrix("s")->rows, 1);
  EXPECT_EQ(matrix("s")->cols, 1);
  EXPECT_EQ(matrix("v")->rows, 1);
  EXPECT_EQ(matrix("v")->cols, 6);
  EXPECT_EQ(matrix("m")->rows, 2);
  EXPECT_EQ(matrix("m")->cols, 3);
  EXPECT_EQ(matrix("m")->row_stride_bytes, 6);
  EXPECT_EQ(matrix("none")->rows, 0);
  EXPECT_THAT(matrix("e").status().message(),
              HasSubstr("has 3 dimensions, at most 2 were expected"));
  EXPECT_THAT(matrix("i").status().message(), HasSubstr("is of a type that no kernel reads"));
  const TensorInfo& e = *s->Find("e");
  const auto slice = s->Slice(e, 2);
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->rows, 2);
  EXPECT_EQ(slice->cols, 4);
  EXPECT_EQ(slice->data, s->Bytes(e).data() + 32);
  EXPECT_EQ(s->Slice(e, 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s->Slice(e, -1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(s->Slice(*s->Find("m"), 0).status().message(), HasSubstr("3 were expected"));
}

TEST(WeightStore, TurnsSlicesRoundAndPairsBlocksWithScales) {
  const TempDir dir;
  const auto s = StoreOf(dir,
                         R"({"e":{"dtype":"BF16","shape":[3,2,4],"data_offsets":[0,48]},)"
                         R"("f8":{"dtype":"F8_E4M3","shape":[1,2,4],"data_offsets":[48,56]},)"
                         R"("b":{"dtype":"U8","shape":[2,3,2,16],"data_offsets":[56,248]},)"
                         R"("s":{"dtype":"U8","shape":[2,3,2],"data_offsets":[248,260]},)"
                         R"("t":{"dtype":"U8","shape":[2,2,3],"data_offsets":[260,272]}})",
                         272);
  ASSERT_NE(s, nullptr);
  const auto tensor = [&](const char* name) -> const TensorInfo& { return *s->Find(name); };
  const auto turned = s->SliceTransposed(tensor("e"), 1);
  ASSERT_TRUE(turned.ok());
  EXPECT_EQ(turned->rows, 4);
  EXPECT_EQ(turned->cols, 2);
  EXPECT_EQ(turned->At(3, 1), s->Bytes(tensor("e")).data() + 16 + (1 * 4 + 3) * 2);
  EXPECT_THAT(s->SliceTransposed(tensor("f8"), 0).status().message(), HasSubstr("F32, F16 or BF16 was expected"));
  EXPECT_EQ(s->SliceTransposed(tensor("e"), 3).status().code(), StatusCode::kInvalidArgument);
  const auto mx = s->Mxfp4Slice(tensor("b"), tensor("s"), 1);
  ASSERT_TRUE(mx.ok());
  EXPECT_EQ(mx->rows, 3);
  EXPECT_EQ(mx->cols, 64);
  EXPECT_EQ(mx->Row(2), s->Bytes(tensor("b")).data() + (3 + 2) * 32);
  EXPECT_EQ(mx->scales.data, s->Bytes(tensor("s")).data() + 6);
  EXPECT_EQ(s->Mxfp4Slice(tensor("b"), tensor("s"), 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(s->Mxfp4Slice(tensor("b"), tensor("t"), 0).status().message(), HasSubstr("was expected as U8 [2, 3, 2]"));
  EXPECT_THAT(s->Mxfp4Slice(tensor("e"), tensor("s"), 0).status().message(), HasSubstr("was expected as MXFP4 blocks"));
}

// An F8 tensor and its scales, as header entries with right offsets.
std::string F8Header(const std::string& shape, size_t bytes, const std::string& scale_dtype,
                     const std::string& scale_shape, size_t scale_bytes) {
  return R"({"w.weight":{"dtype":"F8_E4M3","shape":)" + shape + R"(,"data_offsets":[0,)" +
         std::to_string(bytes) + R"(]},"w.weight_scale_inv":{"dtype":")" + scale_dtype +
         R"(","shape":)" + scale_shape + R"(,"data_offsets":[)" + std::to_string(bytes) + "," +
         std::to_string(bytes + scale_bytes) + "]}}";
}

TEST(WeightStore, ChecksTheGridOfF8Scales) {
  const TempDir dir;
  const auto s = StoreOf(dir, F8Header("[130,300]", 39000, "F32", "[2,3]", 24), 39024);
  ASSERT_NE(s, nullptr);
  const auto view = s->Matrix(*s->Find("w.weight"));
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_EQ(view->scales.cols, 3);
  EXPECT_EQ(view->scales.data, s->Bytes(*s->Find("w.weight_scale_inv")).data());
  const auto bf16 = StoreOf(dir, F8Header("[2,128,128]", 32768, "BF16", "[2,1,1]", 4), 32772);
  ASSERT_NE(bf16, nullptr);
  const auto slice = bf16->Slice(*bf16->Find("w.weight"), 1);
  ASSERT_TRUE(slice.ok()) << slice.status().ToString();
  EXPECT_EQ(slice->scales.data, bf16->Bytes(*bf16->Find("w.weight_scale_inv")).data() + 2);
  EXPECT_EQ(slice->scales.dtype, DType::kBF16);
  for (const auto& [header, bytes] :
       {std::pair(F8Header("[130,300]", 39000, "F32", "[1,3]", 12), 39012),
        std::pair(F8Header("[130,300]", 39000, "F32", "[3,2]", 24), 39024),
        std::pair(F8Header("[130,300]", 39000, "F32", "[]", 4), 39004)}) {
    const auto bad = StoreOf(dir, header, static_cast<size_t>(bytes));
    ASSERT_NE(bad, nullptr);
    const auto refused = bad->Matrix(*bad->Find("w.weight"));
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(),
                HasSubstr("was expected as [2, 3], one scale for each"));
  }
  const auto f16 = StoreOf(dir, F8Header("[1,1]", 1, "F16", "[1,1]", 2), 3);
  ASSERT_NE(f16, nullptr);
  EXPECT_THAT(f16->Matrix(*f16->Find("w.weight")).status().message(),
              HasSubstr("holds block scales, F32 or BF16 was expected"));
}

TEST(WeightStore, OpensEveryGoldenModel) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator("tests/golden")) {
    const bool folder = fs::exists(entry.path() / "model.safetensors") ||
                        fs::exists(entry.path() / "model.safetensors.index.json");
    if (folder) {
      ++models;
      const auto store = WeightStore::Open(entry.path());
      ASSERT_TRUE(store.ok()) << store.status().ToString();
      EXPECT_GT((*store)->tensors().size(), 10u);
    }
    if (fs::exists(entry.path() / "model.gguf")) {
      const auto store = WeightStore::Open(entry.path() / "model.gguf");
      ASSERT_TRUE(store.ok()) << store.status().ToString();
      EXPECT_TRUE((*store)->gguf()->Has("general.architecture"));
    }
  }
  EXPECT_GT(models, 20);
}

// A sanitizer's shadow does not fit under a limit of address space. Without the limit the size of these files shows nothing,
// and they are slow to read.
constexpr uint64_t kRecords = FullOr(1'000'000, 10'000);

uint64_t AddressSpaceBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Opens the file with 1 GiB of address space left beside its mapping; exits with 0 if the answer is
// the one expected ("" for a file that opens) and memory did not run out.
[[noreturn]] void OpenUnderLimit(const fs::path& path, const char* expected) {
  const uint64_t limit = AddressSpaceBytes() + fs::file_size(path) + (uint64_t{1} << 30);
  const struct rlimit bound = {.rlim_cur = limit, .rlim_max = limit};
  if (!kSanitized && ::setrlimit(RLIMIT_AS, &bound) != 0) std::_Exit(2);
  const auto store = WeightStore::Open(path);
  const std::string message = store.ok() ? "" : store.status().message();
  std::fprintf(stderr, "%s\n", message.substr(0, 300).c_str());
  const bool right = *expected == '\0' ? store.ok() : message.find(expected) != std::string::npos;
  std::_Exit(right && (store.ok() || store.status().code() == StatusCode::kInvalidFile) ? 0 : 1);
}

// Safetensors headers near the largest size allowed.
TEST(WeightStoreLimits, HugeSafetensorsHeadersStayBelowOneGibibyte) {
  const TempDir dir;
  const auto expect = [&](const std::string& header, const char* message) {
    const fs::path path = dir.Write("big.safetensors", SafetensorsBytes(header, ""));
    EXPECT_EXIT(OpenUnderLimit(path, message), ::testing::ExitedWithCode(0), "");
  };
  std::string many = "{";
  for (uint64_t i = 0; i < kRecords; ++i) {
    many += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  many.back() = '}';
  expect(many, "");
  const std::string text(16'000'000, 'a');
  expect("{\"" + text + "\":{\"" + text + "\":{\"" + text, "has field 'aaa");
  expect(
      "{\"__metadata__\":{\"a\":\"" + text + "\",\"b\":\"" + text + "\",\"c\":\"" + text + "\"}}",
      "");
  expect("{\"" + std::string(90'000'000, 'a'), "is longer than 16777216 bytes");
  expect("{" + std::string(16'000'000, ' ') + "x", "the JSON is damaged at byte");
}

// A GGUF file whose records are all there, of the smallest size, in a file with holes on disk.
TEST(WeightStoreLimits, HugeGgufHeadersStayBelowOneGibibyte) {
  const TempDir dir;
  const auto expect = [&](const std::string& start, uint64_t file_bytes, const char* message) {
    const fs::path path = dir.Write("big.gguf", start);
    fs::resize_file(path, file_bytes);
    EXPECT_EXIT(OpenUnderLimit(path, message), ::testing::ExitedWithCode(0), "");
  };
  const auto numbered = [](uint64_t i) { return GgufText(std::to_string(i)); };
  std::string keys;
  std::string tensors;
  for (uint64_t i = 0; i < kRecords; ++i) {
    keys += numbered(i) + Le(static_cast<uint32_t>(GgufType::kU8)) + "x";
    tensors += numbered(i) + Le<uint32_t>(1) + Le<uint64_t>(0) + Le<uint32_t>(0) + Le<uint64_t>(0);
  }
  const std::string magic = "GGUF" + Le<uint32_t>(3);
  const std::string start = magic + Le(kRecords) + Le(kRecords) + keys + tensors;
  expect(start, start.size() + 64, "");
  expect(magic + Le(kRecords) + Le<uint64_t>(0), uint64_t{1} << 26, "tensor '' appears twice");
  expect(magic + Le<uint64_t>(0) + Le(kRecords), uint64_t{1} << 26, "key '' appears twice");
  expect(magic + Le<uint64_t>(0) + Le<uint64_t>(2'000'000), uint64_t{1} << 26, "1048576 are read");
  // 2^26 empty strings: as views they would take a whole gibibyte.
  const uint64_t size = uint64_t{1} << 29;
  expect(GgufWriter().Array("k", GgufType::kString, (size - 100) / 8, "").Build(), size, "");
  expect(GgufWriter().Array("k", GgufType::kU8, size - 100, "").Build(), size, "");
  expect(GgufWriter().Array("k", GgufType::kString, uint64_t{1} << 60, "").Build(), size,
         "claims an array of 1152921504606846976 string");
}

}  // namespace
}  // namespace sixfold
