#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/testing/random_matrix.h"

namespace sixfold {
namespace {

using testing::RandomMatrix;

uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }

TEST(Convert, EveryHalfEqualsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float got = F16ToF32(static_cast<uint16_t>(bits));
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 0x3ff;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0);
      EXPECT_EQ(std::isinf(got), mantissa == 0);
      continue;
    }
    double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (bits & 0x8000) want = -want;
    ASSERT_EQ(BitsOf(got), BitsOf(static_cast<float>(want))) << bits;
  }
}

TEST(Convert, EveryF8EqualsItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    const float got = F8E4M3ToF32(static_cast<uint8_t>(code));
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    double want =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if (code & 0x80) want = -want;
    ASSERT_EQ(BitsOf(got), BitsOf(static_cast<float>(want))) << code;
  }
}

TEST(Convert, BF16RoundsToNearestEvenAndKeepsNaN) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    EXPECT_EQ(F32ToBF16(BF16ToF32(static_cast<uint16_t>(high))) & 0xffbf, high & 0xffbf);
  }
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie: to even
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);  // overflows to infinity
  EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(std::bit_cast<float>(0x7f800001u)))));
}

// Blocks and the values that the gguf Python package (0.19) gives for them, as fp32 bits.
struct Golden {
  DType dtype;
  std::vector<uint8_t> block;
  std::vector<uint32_t> values;
};
#include "kernels/testing/dequantize_golden.inc"

TEST(DequantizeRow, EqualsTheGgufPackageBitForBit) {
  for (const Golden& golden : GoldenBlocks()) {
    const int n = InfoOf(golden.dtype).block_elements;
    ASSERT_EQ(golden.block.size(), static_cast<size_t>(InfoOf(golden.dtype).block_bytes));
    ASSERT_EQ(golden.values.size(), static_cast<size_t>(n));
    // Odd alignment and a second row, as in a mapped file.
    std::vector<uint8_t> bytes(golden.block.size() * 2 + 1);
    std::copy(golden.block.begin(), golden.block.end(),
              bytes.begin() + 1 + static_cast<int64_t>(golden.block.size()));
    const MatrixView view{.dtype = golden.dtype,
                          .data = reinterpret_cast<std::byte*>(bytes.data() + 1),
                          .rows = 2,
                          .cols = n,
                          .row_stride_bytes = static_cast<int64_t>(golden.block.size())};
    std::vector<float> row(static_cast<size_t>(n));
    DequantizeRow(view, 1, row.data());
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(BitsOf(row[static_cast<size_t>(i)]), golden.values[static_cast<size_t>(i)])
          << NameOf(golden.dtype) << " element " << i;
    }
  }
}

TEST(DequantizeRow, F8ScaleComesFromTheBlockOfTheOriginalTensor) {
  for (uint64_t seed : {2u, 3u}) {  // fp32 and bf16 scales
    const RandomMatrix m(DType::kF8E4M3, 300, 400, seed);
    std::vector<float> whole(400), cut(150);
    const MatrixView slice = m.view.Rows(100, 290).Cols(100, 250);
    for (int64_t row = 0; row < slice.rows; ++row) {
      DequantizeRow(m.view, row + 100, whole.data());
      DequantizeRow(slice, row, cut.data());
      ASSERT_EQ(std::memcmp(cut.data(), whole.data() + 100, 150 * sizeof(float)), 0);
    }
    DequantizeRow(m.view, 299, whole.data());
    const auto code = static_cast<uint8_t>(m.bytes[299 * 400 + 399]);
    float scale;
    if (m.view.scales.dtype == DType::kF32) {
      std::memcpy(&scale, m.scale_bytes.data() + (2 * 4 + 3) * 4, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, m.scale_bytes.data() + (2 * 4 + 3) * 2, 2);
      scale = BF16ToF32(half);
    }
    EXPECT_EQ(BitsOf(whole[399]), BitsOf(F8E4M3ToF32(code) * scale));
  }
}

}  // namespace
}  // namespace sixfold
