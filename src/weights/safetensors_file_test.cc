#include "weights/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/testing/safetensors_bytes.h"

namespace sixfold {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<SafetensorsFile> Parse(std::string_view bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), bytes.size(), "f.safetensors");
}

// Two tensors whose data are not in the order of the header, one empty, one scalar.
std::string GoodFile() {
  return SafetensorsBytes(R"({"__metadata__":{"format":"pt","who":"a\u00e9"},)"
                          R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                          R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                          R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},)"
                          R"("odd":{"data_offsets":[16,19],"shape":[3],"dtype":"F8_E4M3"}}  )",
                          std::string(19, '\x01'));
}

TEST(Safetensors, ReadsNamesTypesShapesAndPlaces) {
  const std::string bytes = GoodFile();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"who", "aé"}}));
  ASSERT_EQ(file->tensors.size(), 4u);
  const uint64_t data = bytes.size() - 19;
  EXPECT_EQ(file->tensors[0].name, "a");
  EXPECT_TRUE(file->tensors[0].shape.empty());
  EXPECT_EQ(file->tensors[0].bytes, 4u);
  EXPECT_EQ(file->tensors[1].name, "none");
  EXPECT_EQ(file->tensors[1].bytes, 0u);
  EXPECT_EQ(file->tensors[2].name, "b");
  EXPECT_EQ(file->tensors[2].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file->tensors[2].dtype, DType::kBF16);
  EXPECT_EQ(file->tensors[2].offset, data + 4);
  EXPECT_EQ(file->tensors[3].dtype, DType::kF8E4M3);
}

TEST(Safetensors, AFileWithoutTensorsIsFine) {
  EXPECT_TRUE(Parse(SafetensorsBytes("{}", "")).ok());
  EXPECT_TRUE(Parse(SafetensorsBytes(R"({"__metadata__":{}})", "")).ok());
}

struct BadCase {
  const char* what;
  std::string bytes;
  const char* message;
};

std::string One(std::string_view entry, size_t data_bytes = 16) {
  return SafetensorsBytes(R"({"t":)" + std::string(entry) + "}", std::string(data_bytes, 'x'));
}

std::string Two(std::string_view first, std::string_view second, size_t data_bytes = 32) {
  return SafetensorsBytes("{" + std::string(first) + "," + std::string(second) + "}",
                          std::string(data_bytes, 'x'));
}

std::string Nested(int depth) {
  std::string text = R"({"t":)";
  for (int i = 0; i < depth; ++i) text += "[";
  return text;
}

std::vector<BadCase> BadHeaders() {
  const auto length = [](uint64_t n) {
    return std::string(reinterpret_cast<const char*>(&n), 8) + "{}";
  };
  return {
      {"no length", "abc", "has 3 bytes, too few for a safetensors file"},
      {"length of 2^60", length(uint64_t{1} << 60), "claims a header of 1152921504606846976 bytes"},
      {"length of 2^64-1", length(~uint64_t{0}), "claims a header of 18446744073709551615 bytes"},
      {"length past the end", length(3), "claims a header of 3 bytes, the file has 2 after"},
      {"length above the bound", length(100'000'001), "at most 100000000 are allowed"},
      {"empty header", SafetensorsBytes("", "xx"), "does not begin with '{'"},
      {"an array", SafetensorsBytes("[]", ""), "does not begin with '{'"},
      {"white space first", SafetensorsBytes(" {}", ""), "does not begin with '{'"},
      {"JSON cut", SafetensorsBytes(R"({"t":{"dtype")", ""), "the JSON is damaged at byte"},
      {"JSON twice", SafetensorsBytes("{}{}", ""), "the JSON is damaged at byte"},
      {"JSON comment", SafetensorsBytes("{/**/}", ""), "the JSON is damaged at byte"},
      {"not UTF-8", SafetensorsBytes("{\"\xff\":1}", ""), "the JSON is damaged at byte"},
      {"nesting of 1,000", SafetensorsBytes(Nested(1000), ""), "nesting deeper than 16 at byte"},
      {"nesting of 5", SafetensorsBytes(Nested(5), ""), "holds an array, an object was expected"},
      {"a token of 20 MB", SafetensorsBytes("{\"" + std::string(20'000'000, 'a') + "\":{}}", ""),
       "the token at byte 2 is longer than 16777216 bytes"},
      {"metadata twice", SafetensorsBytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       "__metadata__ appears twice"},
      {"metadata key twice", SafetensorsBytes(R"({"__metadata__":{"k":"1","k":"2"}})", ""),
       "__metadata__ has key 'k' twice"},
      {"metadata of a number", SafetensorsBytes(R"({"__metadata__":{"k":1}})", ""),
       "__metadata__ key 'k' holds 1, a string was expected"},
      {"metadata of an object", SafetensorsBytes(R"({"__metadata__":{"k":{}}})", ""),
       "__metadata__ key 'k' holds an object, a string was expected"},
      {"metadata is a string", SafetensorsBytes(R"({"__metadata__":"x"})", ""),
       "key '__metadata__' holds a string, an object was expected"},
      {"a tensor is null", SafetensorsBytes(R"({"t":null})", ""),
       "key 't' holds null, an object was expected"},
  };
}

std::vector<BadCase> BadTensors() {
  return {
      {"no dtype", One(R"({"shape":[4],"data_offsets":[0,16]})"), "tensor 't' lacks dtype"},
      {"no shape", One(R"({"dtype":"F32","data_offsets":[0,16]})"), "tensor 't' lacks shape"},
      {"no offsets", One(R"({"dtype":"F32","shape":[4]})"), "tensor 't' lacks data_offsets"},
      {"unknown dtype", One(R"({"dtype":"F4","shape":[4],"data_offsets":[0,16]})"),
       "tensor 't' has dtype 'F4', which is not known"},
      {"a block type", One(R"({"dtype":"Q4_0","shape":[32],"data_offsets":[0,16]})"),
       "tensor 't' has dtype 'Q4_0', which is not known"},
      {"dtype is a number", One(R"({"dtype":1,"shape":[4],"data_offsets":[0,16]})"),
       "tensor 't' has 1 as 'dtype'"},
      {"shape is a string", One(R"({"dtype":"F32","shape":"4","data_offsets":[0,16]})"),
       "tensor 't' has a string as 'shape'"},
      {"negative extent", One(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"),
       "tensor 't' has -4 in its shape"},
      {"fractional extent", One(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})"),
       "tensor 't' has '4.0' in its shape"},
      {"extent of 2^63",
       One(R"({"dtype":"F32","shape":[9223372036854775808],)"
           R"("data_offsets":[0,16]})"),
       "has dimension 9223372036854775808, which is out of range"},
      {"extent of 2^70",
       One(R"({"dtype":"F32","shape":[1180591620717411303424],)"
           R"("data_offsets":[0,16]})"),
       "tensor 't' has '1180591620717411303424' in its shape"},
      {"size overflows to 16",
       One(R"({"dtype":"F32","shape":[4611686018427387905,4],)"
           R"("data_offsets":[0,16]})"),
       "whose size overflows"},
      {"empty, yet overflows",
       One(R"({"dtype":"F32","shape":[0,4611686018427387905,4],)"
           R"("data_offsets":[0,0]})",
           0),
       "whose size overflows"},
      {"nine dimensions",
       One(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],)"
           R"("data_offsets":[0,16]})"),
       "has more than 8 dimensions"},
      {"a nested shape", One(R"({"dtype":"F32","shape":[[4]],"data_offsets":[0,16]})"),
       "tensor 't' has an array in its shape"},
      {"one offset", One(R"({"dtype":"F32","shape":[4],"data_offsets":[16]})"),
       "tensor 't' has 1 data_offsets, 2 were expected"},
      {"three offsets", One(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16,32]})"),
       "tensor 't' has 32 in its data_offsets"},
      {"offsets backwards", One(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"),
       "has data_offsets [16, 0], which end before they begin"},
      {"offsets past the end", One(R"({"dtype":"F32","shape":[4],"data_offsets":[16,32]})"),
       "has data_offsets [16, 32], the file holds 16 bytes of data"},
      {"offsets of 2^64-1",
       One(R"({"dtype":"F32","shape":[4],)"
           R"("data_offsets":[18446744073709551599,18446744073709551615]})"),
       "the file holds 16 bytes of data"},
      {"size differs", One(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"),
       "has data_offsets [0, 16], 16 bytes, but F32 [3] needs 12"},
      {"unknown field", One(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16],"strides":[1]})"),
       "tensor 't' has field 'strides'"},
      {"field twice", One(R"({"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
       "tensor 't' has field 'dtype' twice"},
      {"name twice",
       Two(R"("t":{"dtype":"U8","shape":[16],"data_offsets":[0,16]})",
           R"("t":{"dtype":"U8","shape":[16],"data_offsets":[16,32]})"),
       "tensor 't' appears twice"},
      {"overlap",
       Two(R"("a":{"dtype":"U8","shape":[20],"data_offsets":[0,20]})",
           R"("b":{"dtype":"U8","shape":[16],"data_offsets":[16,32]})"),
       "and overlaps tensor 'a' (U8 [20])"},
      {"overlap of one byte",
       Two(R"("a":{"dtype":"U8","shape":[17],"data_offsets":[0,17]})",
           R"("b":{"dtype":"U8","shape":[16],"data_offsets":[16,32]})"),
       "and overlaps tensor 'a' (U8 [17])"},
      {"the same bytes",
       Two(R"("a":{"dtype":"U8","shape":[32],"data_offsets":[0,32]})",
           R"("b":{"dtype":"U8","shape":[32],"data_offsets":[0,32]})"),
       "and overlaps tensor 'a' (U8 [32])"},
      {"an empty one inside",
       Two(R"("a":{"dtype":"U8","shape":[32],"data_offsets":[0,32]})",
           R"("b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]})"),
       "and overlaps tensor 'a' (U8 [32])"},
      {"a hole",
       Two(R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})",
           R"("b":{"dtype":"U8","shape":[16],"data_offsets":[16,32]})"),
       "a hole before tensor 'b' (U8 [16])"},
      {"a hole in front", One(R"({"dtype":"U8","shape":[8],"data_offsets":[8,16]})"),
       "a hole before tensor 't' (U8 [8])"},
      {"bytes behind", One(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})"),
       "after the last tensor belong to no tensor"},
      {"bytes without tensors", SafetensorsBytes("{}", "x"),
       "bytes 10 to 11 after the last tensor"},
      {"truncated data", One(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})", 15),
       "the file holds 15 bytes of data: it is truncated"},
  };
}

TEST(Safetensors, RefusesEachLieByName) {
  for (const auto& cases : {BadHeaders(), BadTensors()}) {
    for (const BadCase& bad : cases) {
      const auto file = Parse(bad.bytes);
      ASSERT_FALSE(file.ok()) << bad.what;
      EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile) << bad.what;
      EXPECT_THAT(file.status().message(), HasSubstr(bad.message)) << bad.what;
      EXPECT_THAT(file.status().message(), StartsWith("f.safetensors: ")) << bad.what;
      EXPECT_LT(file.status().message().size(), 500u) << bad.what;
    }
  }
}

TEST(Safetensors, RefusesMoreMetadataAndTensorsThanAnyModelHas) {
  std::string header = R"({"__metadata__":{)";
  for (int i = 0; i <= 1 << 16; ++i) header += "\"" + std::to_string(i) + "\":\"\",";
  header.back() = '}';
  const auto file = Parse(SafetensorsBytes(header + "}", ""));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.status().message(), HasSubstr("__metadata__ has more than 65536 entries"));
}

TEST(Safetensors, EveryPrefixIsRefused) {
  const std::string whole = GoodFile();
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string cut(whole.data(), size);  // its own allocation: asan sees a read past the end
    EXPECT_FALSE(Parse(cut).ok()) << size;
  }
}

TEST(Safetensors, EveryByteMayBeDamagedWithoutHarm) {
  std::string bytes = GoodFile();
  const size_t header = bytes.size() - 19;
  int accepted = 0;
  for (size_t i = 0; i < header; ++i) {
    const char original = bytes[i];
    for (int value = 0; value < 256; ++value) {
      bytes[i] = static_cast<char>(value);
      const auto file = Parse(bytes);
      if (!file.ok()) {
        EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile);
        continue;
      }
      ++accepted;
      for (const TensorInfo& tensor : file->tensors) {
        EXPECT_LE(tensor.offset + tensor.bytes, bytes.size());
      }
    }
    bytes[i] = original;
  }
  EXPECT_GT(accepted, static_cast<int>(header));  // the byte itself, and names may be any
}

Result<ShardIndex> ParseIndex(std::string_view text) {
  return ParseShardIndex(std::as_bytes(std::span(text)), "i.json");
}

TEST(ShardIndex, MapsTensorsToFilesInOrderOfName) {
  const auto index = ParseIndex(
      R"({"metadata":{"total_size":1,"more":[{"weight_map":{"x":1}}]},)"
      R"("weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_THAT(index->files, ::testing::ElementsAre("m-1.safetensors", "m-2.safetensors"));
  EXPECT_THAT(index->weight_map,
              ::testing::UnorderedElementsAre(::testing::Pair("a", 0), ::testing::Pair("b", 1),
                                              ::testing::Pair("c", 1)));
}

TEST(ShardIndex, RefusesEachLieByName) {
  const std::string nul = std::string("{\"weight_map\":{\"t\":\"a\\u0000.safetensors\"}}");
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "the JSON is damaged"},
      {"3", "holds a number, an object was expected"},
      {"[]", "holds an array, an object was expected"},
      {"{}", "lacks weight_map"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":[]})", "weight_map holds an array, an object was expected"},
      {R"({"weight_map":null})", "weight_map holds null, an object was expected"},
      {R"({"weight_map":{"t":1}})", "tensor 't' holds a number, a file name was expected"},
      {R"({"weight_map":{"t":{}}})", "tensor 't' holds an object, a file name was expected"},
      {R"({"weight_map":{"t":["a"]}})", "tensor 't' holds an array, a file name was expected"},
      {R"({"weight_map":{"t":"a.safetensors","t":"b.safetensors"}})", "has tensor 't' twice"},
      {R"({"weight_map":{"t":"a.safetensors"},"weight_map":{"u":"a.safetensors"}})",
       "weight_map appears twice"},
      {R"({"weight_map":{"t":"../a.safetensors"}})", "is in file '../a.safetensors'; a plain name"},
      {R"({"weight_map":{"t":"/etc/a.safetensors"}})", "a plain name ending in .safetensors"},
      {R"({"weight_map":{"t":"d/a.safetensors"}})", "a plain name ending in .safetensors"},
      {R"({"weight_map":{"t":"..safetensors.safetensors"}})",
       "a plain name ending in .safetensors"},
      {R"({"weight_map":{"t":".safetensors"}})", "a plain name ending in .safetensors"},
      {R"({"weight_map":{"t":"a.bin"}})", "a plain name ending in .safetensors"},
      {nul, "a plain name ending in .safetensors"},
      {R"({"weight_map":{"t":")", "the JSON is damaged"},
      {R"({"metadata":)" + std::string(1000, '['), "nesting deeper than 16"},
  };
  for (const auto& [text, message] : cases) {
    const auto index = ParseIndex(text);
    ASSERT_FALSE(index.ok()) << text;
    EXPECT_EQ(index.status().code(), StatusCode::kInvalidFile) << text;
    EXPECT_THAT(index.status().message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace sixfold
