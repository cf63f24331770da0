#include "weights/tensor_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/dequantize.h"
#include "weights/safetensors_writer.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/temp_dir.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = std::bit_cast<uint32_t>(values[i]);
  return bits;
}

std::unique_ptr<WeightStore> MustOpen(const fs::path& path) {
  auto store = WeightStore::Open(path);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::move(*store) : nullptr;
}

std::vector<float> MustRead(const WeightStore& store, const TensorInfo& tensor) {
  auto values = ReadAll(store, tensor);
  EXPECT_TRUE(values.ok()) << values.status().ToString();
  return values.ok() ? *values : std::vector<float>();
}

// Random ranges of the tensor equal the same part of `whole`.
void CheckCuts(const WeightStore& store, const TensorInfo& tensor,
               const std::vector<float>& whole) {
  const int64_t rows = TensorRows(tensor);
  const int64_t cols = TensorCols(tensor);
  ASSERT_EQ(static_cast<int64_t>(whole.size()), rows * cols);
  for (uint64_t i = 0; i < 40; ++i) {
    const auto pick = [&](uint64_t purpose, int64_t n) {
      return static_cast<int64_t>((i * 2654435761u + purpose * 40503u + 7 * i * purpose) %
                                  static_cast<uint64_t>(n + 1));
    };
    const int64_t r0 = std::min(pick(1, rows), pick(2, rows));
    const int64_t r1 = std::max(pick(1, rows), pick(2, rows));
    const int64_t c0 = std::min(pick(3, cols), pick(4, cols));
    const int64_t c1 = std::max(pick(3, cols), pick(4, cols));
    std::vector<float> part(static_cast<size_t>((r1 - r0) * (c1 - c0)) + 1, -77.0f);
    ASSERT_TRUE(ReadRows(store, tensor, {r0, r1, c0, c1}, part.data()).ok());
    EXPECT_EQ(part.back(), -77.0f) << "wrote past the range";
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) {
        const float got = part[static_cast<size_t>((r - r0) * (c1 - c0) + c - c0)];
        const float want = whole[static_cast<size_t>(r * cols + c)];
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << r << " " << c;
      }
    }
  }
}

// tests/golden/quant: what gguf.dequantize of the gguf Python package gives.
class GoldenQuant : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenQuant, EqualsTheGgufPackageBitForBitInEveryCut) {
  const std::string stem = std::string("tests/golden/quant/") + GetParam();
  const auto store = MustOpen(stem + ".gguf");
  const auto expected = MustOpen(stem + ".expected.safetensors");
  ASSERT_TRUE(store != nullptr && expected != nullptr);
  ASSERT_EQ(store->tensors().size(), expected->tensors().size());
  for (const TensorInfo& want : expected->tensors()) {
    const TensorInfo* tensor = store->Find(want.name);
    ASSERT_NE(tensor, nullptr) << want.name;
    EXPECT_EQ(NameOf(tensor->dtype), GetParam());
    EXPECT_EQ(tensor->shape, want.shape) << want.name;
    ASSERT_EQ(want.dtype, DType::kF32);
    std::vector<float> reference(want.bytes / sizeof(float));
    std::memcpy(reference.data(), expected->Bytes(want).data(), want.bytes);
    EXPECT_EQ(Bits(MustRead(*store, *tensor)), Bits(reference)) << want.name;
    CheckCuts(*store, *tensor, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GoldenQuant,
                         ::testing::Values("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
                                           "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4"));

// What transformers makes of blocks and scales that lie apart, in cuts of rows and of columns too.
TEST(SplitMxfp4, EqualsTransformersBitForBit) {
  const auto store = MustOpen("tests/golden/quant/MXFP4_SPLIT.safetensors");
  ASSERT_NE(store, nullptr);
  const std::vector<float> expected = MustRead(*store, *store->Find("expected"));  // [2, 5, 96]
  ASSERT_EQ(expected.size(), 2u * 5 * 96);
  for (int64_t e = 0; e < 2; ++e) {
    const auto view = store->Mxfp4Slice(*store->Find("w_blocks"), *store->Find("w_scales"), e);
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    ASSERT_EQ(view->rows, 5);
    ASSERT_EQ(view->cols, 96);
    for (int64_t first : {0, 1}) {
      for (int64_t begin : {0, 32, 64}) {
        const MatrixView cut = view->EveryRow(first, 2).Cols(begin, 96);
        std::vector<float> row(static_cast<size_t>(96 - begin));
        for (int64_t r = 0; r < cut.rows; ++r) {
          DequantizeRow(cut, r, row.data());
          for (size_t j = 0; j < row.size(); ++j) {
            const float want = expected[static_cast<size_t>((e * 5 + first + 2 * r) * 96 + begin) + j];
            ASSERT_EQ(row[j], want) << e << " " << first + 2 * r << " " << begin + static_cast<int64_t>(j);
          }
        }
      }
    }
  }
}

// E4M3 by its definition: sign, four bits of exponent with bias 7, three of fraction.
float E4M3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::nanf("");
  const double value =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return static_cast<float>(code >= 128 ? -value : value);
}

struct F8File {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<uint16_t> bf16_scales;
  std::vector<float> expected;
};

// Every code occurs; the scales are those of the BF16 bits when `bf16_scales`.
F8File MakeF8(int64_t slices, int64_t rows, int64_t cols, bool bf16_scales) {
  F8File file;
  const int64_t grid_rows = (rows + 127) / 128;
  const int64_t grid_cols = (cols + 127) / 128;
  for (int64_t i = 0; i < slices * grid_rows * grid_cols; ++i) {
    const float scale = 0.001f * static_cast<float>(i + 1);
    const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
    file.bf16_scales.push_back(upper);
    file.scales.push_back(bf16_scales ? std::bit_cast<float>(uint32_t{upper} << 16) : scale);
  }
  for (int64_t s = 0; s < slices; ++s) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto code = static_cast<uint8_t>(s * 31 + r * 7 + c);
        const int64_t block = (s * grid_rows + r / 128) * grid_cols + c / 128;
        file.codes.push_back(static_cast<std::byte>(code));
        file.expected.push_back(E4M3(code) * file.scales[static_cast<size_t>(block)]);
      }
    }
  }
  return file;
}

void ExpectSame(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << i;
    }
  }
}

TEST(F8, PartialBlocksAndCutsTakeTheScaleOfTheOriginalBlock) {
  const TempDir dir;
  const F8File f8 = MakeF8(1, 300, 200, false);
  const fs::path path = dir.path() / "f.safetensors";
  ASSERT_TRUE(
      WriteSafetensors(
          path,
          std::vector<OutputTensor>{
              {"w.weight", DType::kF8E4M3, {300, 200}, f8.codes},
              {"w.weight_scale_inv", DType::kF32, {3, 2}, std::as_bytes(std::span(f8.scales))}})
          .ok());
  const auto store = MustOpen(path);
  ASSERT_NE(store, nullptr);
  const TensorInfo& tensor = *store->Find("w.weight");
  const auto whole = MustRead(*store, tensor);
  ExpectSame(whole, f8.expected);
  CheckCuts(*store, tensor, whole);
}

TEST(F8, SlicesOfStackedExpertsHaveTheirOwnGrid) {
  const TempDir dir;
  const F8File f8 = MakeF8(3, 130, 129, true);
  const fs::path path = dir.path() / "f.safetensors";
  ASSERT_TRUE(
      WriteSafetensors(
          path, std::vector<OutputTensor>{{"e.weight", DType::kF8E4M3, {3, 130, 129}, f8.codes},
                                          {"e.weight_scale_inv",
                                           DType::kBF16,
                                           {3, 2, 2},
                                           std::as_bytes(std::span(f8.bf16_scales))}})
          .ok());
  const auto store = MustOpen(path);
  ASSERT_NE(store, nullptr);
  const TensorInfo& tensor = *store->Find("e.weight");
  const auto whole = MustRead(*store, tensor);
  ExpectSame(whole, f8.expected);
  CheckCuts(*store, tensor, whole);
}

TEST(F8, WithoutScalesTheCodeIsTheValue) {
  const TempDir dir;
  std::vector<std::byte> codes(256);
  std::vector<float> expected;
  for (int i = 0; i < 256; ++i) {
    codes[static_cast<size_t>(i)] = static_cast<std::byte>(i);
    expected.push_back(E4M3(static_cast<uint8_t>(i)));
  }
  const fs::path path = dir.path() / "f.safetensors";
  ASSERT_TRUE(
      WriteSafetensors(path, std::vector<OutputTensor>{{"w", DType::kF8E4M3, {256}, codes}}).ok());
  const auto store = MustOpen(path);
  ASSERT_NE(store, nullptr);
  ExpectSame(MustRead(*store, *store->Find("w")), expected);
}

TEST(ReadRows, ConvertsPlainTypesThatNoKernelReads) {
  const TempDir dir;
  const fs::path path = dir.path() / "p.safetensors";
  const auto one = [&](DType dtype, const std::string& bytes) {
    const std::vector<OutputTensor> tensors = {
        {"t", dtype, {2}, std::as_bytes(std::span(bytes.data(), bytes.size()))}};
    EXPECT_TRUE(WriteSafetensors(path, tensors).ok());
    const auto store = MustOpen(path);
    return MustRead(*store, *store->Find("t"));
  };
  EXPECT_THAT(one(DType::kF64, Le(0.1) + Le(-2.0)), ElementsAre(0.1f, -2.0f));
  EXPECT_THAT(one(DType::kI64, Le<int64_t>(-5) + Le<int64_t>(1)), ElementsAre(-5.0f, 1.0f));
  EXPECT_THAT(one(DType::kU64, Le(~uint64_t{0}) + Le<uint64_t>(1)),
              ElementsAre(18446744073709551616.0f, 1.0f));
  EXPECT_THAT(one(DType::kI32, Le<int32_t>(-5) + Le<int32_t>(9)), ElementsAre(-5.0f, 9.0f));
  EXPECT_THAT(one(DType::kU32, Le<uint32_t>(5) + Le<uint32_t>(9)), ElementsAre(5.0f, 9.0f));
  EXPECT_THAT(one(DType::kI16, Le<int16_t>(-5) + Le<int16_t>(9)), ElementsAre(-5.0f, 9.0f));
  EXPECT_THAT(one(DType::kU16, Le<uint16_t>(65535) + Le<uint16_t>(9)), ElementsAre(65535.0f, 9.0f));
  EXPECT_THAT(one(DType::kI8, "\xfb\x09"), ElementsAre(-5.0f, 9.0f));
  EXPECT_THAT(one(DType::kU8, "\xfb\x09"), ElementsAre(251.0f, 9.0f));
  EXPECT_THAT(one(DType::kBool, std::string("\x01\x00", 2)), ElementsAre(1.0f, 0.0f));
  EXPECT_THAT(one(DType::kF8E5M2, "\x3e\xc0"), ElementsAre(1.5f, -2.0f));
}

TEST(ReadRows, SaysWhatCannotBeRead) {
  const TempDir dir;
  const fs::path path = dir.Write(
      "t.gguf",
      GgufWriter()
          .Tensor({.name = "k2", .type = 10, .dims = {256, 2}, .data = std::string(168, 'k')})
          .Tensor({.name = "empty", .dims = {uint64_t{1} << 40, 0, 2}})
          .Tensor({.name = "f", .dims = {4, 2, 2, 1}, .data = std::string(64, '\0')})
          .Build());
  const auto store = MustOpen(path);
  ASSERT_NE(store, nullptr);
  const auto refused = ReadAll(*store, *store->Find("k2"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidFile);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("tensor 'k2' (Q2_K [2, 256]) is of a type that is"));
  EXPECT_TRUE(MustRead(*store, *store->Find("empty")).empty());
  const TensorInfo& f = *store->Find("f");
  EXPECT_EQ(TensorRows(f), 4);
  EXPECT_EQ(MustRead(*store, f).size(), 16u);
  float out[16];
  for (const ReadRange& range :
       {ReadRange{-1, 1, 0, 4}, ReadRange{0, 5, 0, 4}, ReadRange{2, 1, 0, 4}, ReadRange{0, 1, 0, 5},
        ReadRange{0, 1, 3, 2}, ReadRange{0, -2, 0, 1}}) {
    EXPECT_EQ(ReadRows(*store, f, range, out).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sixfold
