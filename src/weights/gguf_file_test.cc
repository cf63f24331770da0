#include "weights/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "weights/testing/gguf_writer.h"

namespace sixfold {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<GgufFile> Parse(std::string_view bytes) {
  return ParseGguf(std::as_bytes(std::span(bytes)), bytes.size(), "f.gguf");
}

GgufTestTensor F32(const std::string& name, uint64_t count) {
  return {.name = name, .dims = {count}, .data = std::string(count * 4, '\x02')};
}

// Every value type, an array of each kind, and tensors of several types.
GgufWriter Good() {
  GgufWriter w;
  w.String("general.architecture", "llama").U32("general.alignment", 32);
  w.Value("u8", GgufType::kU8, Le<uint8_t>(200)).Value("i8", GgufType::kI8, Le<int8_t>(-3));
  w.Value("u16", GgufType::kU16, Le<uint16_t>(65535)).Value("i16", GgufType::kI16, Le<int16_t>(-2));
  w.Value("i32", GgufType::kI32, Le<int32_t>(-7)).Value("u64", GgufType::kU64, Le(~uint64_t{0}));
  w.Value("i64", GgufType::kI64, Le<int64_t>(-9)).Value("f32", GgufType::kF32, Le(1e-5f));
  w.Value("f64", GgufType::kF64, Le(2.5)).Value("yes", GgufType::kBool, Le<uint8_t>(1));
  w.Array("texts", GgufType::kString, 3, GgufText("a") + GgufText("") + GgufText("ccc"));
  w.Array("ints", GgufType::kI32, 2, Le<int32_t>(4) + Le<int32_t>(-5));
  w.Array("floats", GgufType::kF32, 2, Le(0.5f) + Le(-1.0f));
  w.Array("bools", GgufType::kBool, 2, Le<uint8_t>(0) + Le<uint8_t>(1));
  w.Array("none", GgufType::kU8, 0, "");
  w.Array("nested", GgufType::kArray, 1,
          Le(static_cast<uint32_t>(GgufType::kU8)) + Le<uint64_t>(2) + "xy");
  w.Tensor({.name = "m", .type = 2, .dims = {64, 3}, .data = std::string(3 * 2 * 18, '\x05')});
  w.Tensor(F32("v", 5)).Tensor({.name = "s", .type = 0, .dims = {}, .data = "abcd"});
  w.Tensor({.name = "e", .type = 1, .dims = {8, 2, 3}, .data = std::string(96, '\x06')});
  return w;
}

TEST(Gguf, ReadsShapesOutermostFirst) {
  const std::string bytes = Good().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->version, 3u);
  ASSERT_EQ(file->tensors.size(), 4u);
  EXPECT_EQ(file->tensors[0].name, "m");
  EXPECT_EQ(file->tensors[0].dtype, DType::kQ4_0);
  EXPECT_THAT(file->tensors[0].shape, ElementsAre(3, 64));
  EXPECT_EQ(file->tensors[0].bytes, 108u);
  EXPECT_EQ(file->tensors[0].offset, file->data_begin);
  EXPECT_EQ(file->tensors[1].offset, file->data_begin + 128);
  EXPECT_TRUE(file->tensors[2].shape.empty());
  EXPECT_THAT(file->tensors[3].shape, ElementsAre(3, 2, 8));
  EXPECT_EQ(file->tensors[3].offset + file->tensors[3].bytes, bytes.size());
}

TEST(Gguf, ReadsValuesOfEveryType) {
  const std::string bytes = Good().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const GgufMetadata& m = file->metadata;
  EXPECT_EQ(*m.GetString("general.architecture"), "llama");
  EXPECT_EQ(*m.GetU64("u8"), 200u);
  EXPECT_EQ(*m.GetI64("i8"), -3);
  EXPECT_EQ(*m.GetU64("u16"), 65535u);
  EXPECT_EQ(*m.GetI64("i16"), -2);
  EXPECT_EQ(*m.GetI64("i32"), -7);
  EXPECT_EQ(*m.GetU64("u64"), ~uint64_t{0});
  EXPECT_EQ(*m.GetI64("i64"), -9);
  EXPECT_EQ(*m.GetF64("f32"), static_cast<double>(1e-5f));
  EXPECT_EQ(*m.GetF64("f64"), 2.5);
  EXPECT_EQ(*m.GetF64("i32"), -7.0);
  EXPECT_EQ(*m.GetF64("u64"), std::ldexp(1.0, 64));
  EXPECT_TRUE(*m.GetBool("yes"));
  EXPECT_THAT(*m.GetStrings("texts"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*m.GetI64s("ints"), ElementsAre(4, -5));
  EXPECT_THAT(*m.GetF32s("floats"), ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(*m.GetF32s("ints"), ElementsAre(4.0f, -5.0f));
  EXPECT_THAT(*m.GetBools("bools"), ElementsAre(false, true));
  EXPECT_THAT(*m.GetI64s("u8"), ElementsAre(200));
  EXPECT_THAT(*m.GetStrings("general.architecture"), ElementsAre("llama"));
  EXPECT_TRUE(m.GetStrings("none")->empty());
  EXPECT_EQ(*m.GetU64Or("absent", 5), 5u);
  EXPECT_EQ(*m.GetU64Or("u8", 5), 200u);
  EXPECT_EQ(*m.GetI64Or("absent", -5), -5);
  EXPECT_EQ(*m.GetF64Or("absent", 0.5), 0.5);
  EXPECT_TRUE(*m.GetBoolOr("absent", true));
  EXPECT_EQ(*m.GetStringOr("absent", "x"), "x");
  EXPECT_EQ(m.TypeName("texts"), "array of string");
  EXPECT_EQ(m.TypeName("u8"), "u8");
  EXPECT_EQ(m.TypeName("absent"), std::nullopt);
  EXPECT_EQ(m.Count("texts"), 3u);
  EXPECT_EQ(m.Count("absent"), 0u);
  EXPECT_EQ(m.entries()[0].key, "general.architecture");
}

TEST(Gguf, DescribesValuesInOneLine) {
  const std::string bytes = Good().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  std::map<std::string_view, std::string> lines;
  for (const GgufEntry& entry : file->metadata.entries()) {
    lines[entry.key] = file->metadata.Describe(entry, 10);
  }
  EXPECT_EQ(lines["general.architecture"], "'llama'");
  EXPECT_EQ(lines["u64"], "18446744073709551615");
  EXPECT_EQ(lines["i8"], "-3");
  EXPECT_EQ(lines["f64"], "2.5");
  EXPECT_EQ(lines["yes"], "true");
  EXPECT_EQ(lines["texts"], "['a', '', ...] (3 string)");
  EXPECT_EQ(lines["nested"], "[...] (1 array)");
  EXPECT_EQ(lines["none"], "[] (0 u8)");
}

TEST(Gguf, GettersNameKeyWantedAndFound) {
  const std::string bytes = Good().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const GgufMetadata& m = file->metadata;
  const auto expect = [](const Status& status, const char* message) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
    EXPECT_EQ(status.message(), message);
  };
  expect(m.GetU64("x").status(), "f.gguf: key 'x' is missing, a whole number from 0 was expected");
  expect(m.GetU64("f32").status(),
         "f.gguf: key 'f32' holds f32, a whole number from 0 was expected");
  expect(m.GetU64("yes").status(),
         "f.gguf: key 'yes' holds bool, a whole number from 0 was expected");
  expect(m.GetU64("i8").status(), "f.gguf: key 'i8' is -3, a whole number from 0 was expected");
  expect(m.GetU64Or("texts", 1).status(),
         "f.gguf: key 'texts' holds array of string, a whole number from 0 was expected");
  expect(m.GetI64("u64").status(),
         "f.gguf: key 'u64' is above the range of a signed 64-bit number");
  expect(m.GetF64("texts").status(),
         "f.gguf: key 'texts' holds array of string, a number was expected");
  expect(m.GetBool("u8").status(), "f.gguf: key 'u8' holds u8, a bool was expected");
  expect(m.GetString("u8").status(), "f.gguf: key 'u8' holds u8, a string was expected");
  expect(m.GetStrings("ints").status(),
         "f.gguf: key 'ints' holds array of i32, an array of strings was expected");
  expect(m.GetI64s("floats").status(),
         "f.gguf: key 'floats' holds array of f32, an array of whole numbers was expected");
  expect(m.GetF32s("texts").status(),
         "f.gguf: key 'texts' holds array of string, an array of numbers was expected");
  expect(m.GetBools("ints").status(),
         "f.gguf: key 'ints' holds array of i32, an array of bools was expected");
  expect(m.GetStrings("nested").status(),
         "f.gguf: key 'nested' holds array of array, an array of strings was expected");
}

TEST(Gguf, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(Parse(GgufWriter().Build()).ok());
  GgufWriter v2 = Good();
  v2.version = 2;
  EXPECT_TRUE(Parse(v2.Build()).ok());
  GgufWriter trailing = Good();
  trailing.trailer = std::string(100, 'z');
  EXPECT_TRUE(Parse(trailing.Build()).ok());
  GgufWriter wide = GgufWriter().U32("general.alignment", 256).Tensor(F32("a", 1));
  wide.Tensor(F32("b", 1)).alignment = 256;
  const auto file = Parse(wide.Build());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->tensors[1].offset - file->tensors[0].offset, 256u);
  EXPECT_TRUE(Parse(GgufWriter().Tensor({.name = "e", .dims = {0, 7}}).Build()).ok());
  // Records in another order than the data.
  const auto swapped = Parse(GgufWriter()
                                 .Tensor({"b", 0, {8}, std::string(32, 'b'), 32})
                                 .Tensor({"a", 0, {8}, std::string(32, 'a'), 0})
                                 .Build());
  ASSERT_TRUE(swapped.ok());
  EXPECT_EQ(swapped->tensors[0].name, "a");
}

struct BadCase {
  const char* what;
  std::string bytes;
  const char* message;
};

std::string With(const std::function<void(GgufWriter&)>& change) {
  GgufWriter w = Good();
  change(w);
  return w.Build();
}

std::string OneKey(uint32_t type, const std::string& payload) {
  return GgufWriter().RawValue("k", type, payload).Build();
}

std::string OneArray(GgufType element, uint64_t count, const std::string& payload) {
  return GgufWriter().Array("k", element, count, payload).Build();
}

std::string OneTensor(GgufTestTensor tensor) {
  return GgufWriter().Tensor(std::move(tensor)).Build();
}

std::string NestedArrays(int depth) {
  std::string payload;
  for (int i = 0; i < depth; ++i) {
    payload += Le(static_cast<uint32_t>(GgufType::kArray)) + Le<uint64_t>(1);
  }
  return OneKey(9, payload + Le<uint32_t>(0) + Le<uint64_t>(0));
}

constexpr uint64_t k2To60 = uint64_t{1} << 60;

std::vector<BadCase> BadPreambles() {
  return {
      {"another magic", With([](auto& w) { w.magic = "GGML"; }), "begins with 'GGML', 'GGUF' was"},
      {"short", "GG", "begins with 'GG', 'GGUF' was expected"},
      {"only magic", "GGUF", "the version goes past the end of the file (4 bytes)"},
      {"version 1", With([](auto& w) { w.version = 1; }), "is GGUF version 1, versions 2 and 3"},
      {"version 4", With([](auto& w) { w.version = 4; }), "is GGUF version 4, versions 2 and 3"},
      {"version 0", With([](auto& w) { w.version = 0; }), "is GGUF version 0, versions 2 and 3"},
      {"big-endian", With([](auto& w) { w.version = 0x03000000; }), "is a big-endian GGUF file"},
      {"magic reversed", With([](auto& w) { w.magic = "FUGG"; }), "is a big-endian GGUF file"},
      {"keys of 2^60", With([](auto& w) { w.key_count = k2To60; }),
       "claims 1152921504606846976 keys, the"},
      {"keys of 2^64-1", With([](auto& w) { w.key_count = ~uint64_t{0}; }),
       "claims 18446744073709551615 keys, the"},
      // Fewer than the bytes left, more than records that could lie there.
      {"keys a record too many", With([](auto& w) { w.key_count = 200; }), "claims 200 keys, the"},
      {"tensors of 2^60", With([](auto& w) { w.tensor_count = k2To60; }),
       "claims 1152921504606846976 tensors, the"},
      {"a key too many", With([](auto& w) { w.key_count = 20; }), "goes past the end of the file"},
      {"a tensor too many", With([](auto& w) { w.tensor_count = 5; }), "tensor"},
  };
}

std::vector<BadCase> BadKeys() {
  const std::string u64_max = Le(~uint64_t{0});
  return {
      {"key length of 2^64-1", With([&](auto& w) {
                                 w.magic = "GGUF";
                                 w.key_count = 1;
                               }).replace(24, 8, u64_max),
       "key number 0 goes past the end of the file"},
      {"key too long", GgufWriter().U32(std::string(65536, 'k'), 1).Build(),
       "key number 0 has 65536 bytes, at most 65535 are allowed"},
      {"unknown type", OneKey(13, "xxxx"), "key 'k' has value type 13, which is not known"},
      {"type of 2^32-1", OneKey(~0u, "xxxx"), "key 'k' has value type 4294967295, which is not"},
      {"no value", OneKey(10, "1234567"), "the value of key 'k' goes past the end"},
      {"a bool of 2", OneKey(7, "\x02"), "key 'k' is a bool of value 2, 0 or 1 was expected"},
      {"string past the end", OneKey(8, Le<uint64_t>(5) + "abcd"), "a string of key 'k' goes past"},
      {"string of 2^64-1", OneKey(8, u64_max + "abcd"), "a string of key 'k' goes past the end"},
      {"array of 2^60", OneArray(GgufType::kU32, k2To60, "abcd"),
       "key 'k' claims an array of 1152921504606846976 u32, the 4 bytes left hold at most 1"},
      {"array wraps", OneArray(GgufType::kU64, (uint64_t{1} << 61) + 1, "abcdefgh"),
       "key 'k' claims an array of 2305843009213693953 u64"},
      {"strings of 2^60", OneArray(GgufType::kString, k2To60, GgufText("abc")),
       "key 'k' claims an array of 1152921504606846976 string"},
      {"string in an array", OneArray(GgufType::kString, 1, Le<uint64_t>(9) + "abcd"),
       "a string of key 'k' goes past the end"},
      {"array of an unknown type", OneKey(9, Le<uint32_t>(99) + Le<uint64_t>(0)),
       "key 'k' has value type 99, which is not known"},
      {"array without count", OneKey(9, Le<uint32_t>(4)), "the array of key 'k' goes past the end"},
      {"nesting of 5", NestedArrays(5), "key 'k' nests arrays deeper than 4"},
      {"nesting of 1,000", NestedArrays(1000), "key 'k' nests arrays deeper than 4"},
      {"key twice", With([](auto& w) { w.U32("u8", 1); }), "key 'u8' appears twice"},
      {"alignment of 0", GgufWriter().U32("general.alignment", 0).Build(),
       "key 'general.alignment' is 0, a power of two"},
      {"alignment of 48", GgufWriter().U32("general.alignment", 48).Build(),
       "key 'general.alignment' is 48, a power of two"},
      {"alignment of 2^31", GgufWriter().U32("general.alignment", 1u << 31).Build(),
       "key 'general.alignment' is 2147483648, a power of two up to 1048576"},
      {"alignment is text", GgufWriter().String("general.alignment", "32").Build(),
       "key 'general.alignment' holds string, a whole number from 0 was expected"},
  };
}

std::vector<BadCase> BadTensors() {
  const std::string data(256, 'd');
  return {
      {"five dimensions", OneTensor({"t", 0, {1, 1, 1, 1, 8}, data}),
       "tensor 't' has 5 dimensions, at most 4 are allowed"},
      {"extent of 2^63", OneTensor({"t", 0, {uint64_t{1} << 63}, data}),
       "tensor 't' has dimension 9223372036854775808, which is out of range"},
      {"size overflows", OneTensor({"t", 0, {k2To60, 64}, data}),
       "tensor 't' (F32 [64, 1152921504606846976]) has a size that overflows"},
      {"size of 2^60", OneTensor({"t", 0, {k2To60}, data}),
       "tensor 't' (F32 [1152921504606846976]) needs 4611686018427387904 bytes"},
      {"empty, yet overflows", OneTensor({"t", 0, {0, k2To60, k2To60}, ""}),
       "a size that overflows"},
      {"a cut block", OneTensor({"t", 2, {48, 2}, data}),
       "tensor 't' (Q4_0 [2, 48]) has an innermost dimension of 48, a multiple of its block, 32"},
      {"a cut superblock", OneTensor({"t", 12, {32}, data}), "a multiple of its block, 256"},
      {"a scalar block", OneTensor({"t", 2, {}, data}), "has an innermost dimension of 1"},
      {"removed type", OneTensor({"t", 4, {32}, data}), "tensor 't' has ggml type number 4"},
      {"type of 2^32-1", OneTensor({"t", ~0u, {32}, data}),
       "tensor 't' has ggml type number 4294967295, which is not known"},
      {"name twice", With([](auto& w) { w.Tensor(F32("m", 8)); }), "tensor 'm' appears twice"},
      {"name too long", OneTensor(F32(std::string(65536, 'n'), 8)), "has a name of 65536 bytes"},
      {"unaligned", GgufWriter().Tensor(F32("a", 8)).Tensor({"b", 0, {8}, data, 33}).Build(),
       "tensor 'b' (F32 [8]) begins at offset 33 of the data, which is unaligned: a multiple of "
       "32"},
      {"unaligned for 64",
       GgufWriter().U32("general.alignment", 64).Tensor(F32("a", 8)).Tensor(F32("b", 8)).Build(),
       "a multiple of 64 was expected"},
      {"overlap", GgufWriter().Tensor(F32("a", 16)).Tensor({"b", 0, {8}, data, 32}).Build(),
       "tensor 'b' (F32 [8]) begins at byte"},
      {"the same bytes", GgufWriter().Tensor(F32("a", 8)).Tensor({"b", 0, {8}, data, 0}).Build(),
       "and overlaps tensor 'a' (F32 [8])"},
      {"a hole", GgufWriter().Tensor(F32("a", 8)).Tensor({"b", 0, {8}, data, 64}).Build(),
       "a hole before tensor 'b' (F32 [8])"},
      {"a hole in front", OneTensor({"t", 0, {8}, data, 32}), "a hole before tensor 't' (F32 [8])"},
      {"offset past the end", OneTensor({"t", 0, {8}, data, 4096}), "needs 32 bytes from byte"},
      {"offset wraps", OneTensor({"t", 0, {8}, data, ~uint64_t{0} - 31}),
       "needs 32 bytes from byte"},
      {"offset of 2^60", OneTensor({"t", 0, {8}, data, k2To60}), "needs 32 bytes from byte"},
      {"no data at all", OneTensor({"t", 0, {8}, ""}), "goes past the end of the file"},
      {"data cut", OneTensor({"t", 0, {8}, std::string(31, 'd')}),
       "it is truncated or its header is wrong"},
  };
}

TEST(Gguf, RefusesEachLieByName) {
  for (const auto& cases : {BadPreambles(), BadKeys(), BadTensors()}) {
    for (const BadCase& bad : cases) {
      const auto file = Parse(bad.bytes);
      ASSERT_FALSE(file.ok()) << bad.what;
      EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile) << bad.what;
      EXPECT_THAT(file.status().message(), HasSubstr(bad.message)) << bad.what;
      EXPECT_THAT(file.status().message(), StartsWith("f.gguf: ")) << bad.what;
      EXPECT_LT(file.status().message().size(), 500u) << bad.what;
    }
  }
}

TEST(Gguf, EveryPrefixIsRefused) {
  const std::string whole = Good().Build();
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string cut(whole.data(), size);  // its own allocation: asan sees a read past the end
    EXPECT_FALSE(Parse(cut).ok()) << size;
  }
}

// Reads everything that a parsed header offers.
void ReadAll(const GgufFile& file, size_t file_bytes) {
  for (const GgufEntry& entry : file.metadata.entries()) {
    EXPECT_FALSE(file.metadata.Describe(entry, 64).empty());
    EXPECT_LE(file.metadata.Raw(entry).size(), file_bytes);
    (void)file.metadata.GetStrings(entry.key).ok();
    (void)file.metadata.GetF32s(entry.key).ok();
    (void)file.metadata.GetI64s(entry.key).ok();
  }
  for (const TensorInfo& tensor : file.tensors) {
    EXPECT_LE(tensor.offset + tensor.bytes, file_bytes);
  }
}

TEST(Gguf, EveryByteMayBeDamagedWithoutHarm) {
  std::string bytes = Good().Build();
  const size_t header = Parse(bytes)->data_begin;
  int accepted = 0;
  for (size_t i = 0; i < header; ++i) {
    const char original = bytes[i];
    for (int value = 0; value < 256; ++value) {
      bytes[i] = static_cast<char>(value);
      const auto file = Parse(bytes);
      if (file.ok()) {
        ++accepted;
        ReadAll(*file, bytes.size());
      } else {
        EXPECT_EQ(file.status().code(), StatusCode::kInvalidFile);
      }
    }
    bytes[i] = original;
  }
  EXPECT_GT(accepted, static_cast<int>(header));
}

}  // namespace
}  // namespace sixfold
