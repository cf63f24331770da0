#include <gtest/gtest.h>

#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/matrix_view.h"

namespace sixfold {
namespace {

TEST(DType, EveryTypeHasItsRowAndRoundTripsThroughItsNumber) {
  for (int i = 0; i <= static_cast<int>(DType::kMXFP4); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_GT(InfoOf(dtype).block_bytes, 0);
  }
  for (uint32_t type = 0; type < 64; ++type) {
    const auto dtype = DTypeFromGgml(type);
    if (dtype.has_value()) {
      EXPECT_FALSE(NameOf(*dtype).empty());
    }
  }
  EXPECT_EQ(DTypeFromGgml(12), DType::kQ4_K);
  EXPECT_EQ(DTypeFromSafetensors("F8_E4M3"), DType::kF8E4M3);
  EXPECT_FALSE(DTypeFromSafetensors("Q4_0").has_value());
  EXPECT_FALSE(DTypeFromGgml(4).has_value());
}

TEST(MatrixView, SlicesKeepTheOriginOfTheirScales) {
  std::byte bytes[64 * 20] = {};
  MatrixView m{.dtype = DType::kQ4_1, .data = bytes, .rows = 4, .cols = 320, .row_stride_bytes = 200};
  const MatrixView cut = m.Rows(1, 3).Cols(64, 128);
  EXPECT_EQ(cut.data, bytes + 200 + 2 * 20);
  EXPECT_EQ(cut.rows, 2);
  EXPECT_EQ(cut.cols, 64);
  EXPECT_EQ(cut.scales.row_origin, 1);
  EXPECT_EQ(cut.scales.col_origin, 64);
}

TEST(Buffer, MayBeReadPastItsEndByAVector) {
  for (const size_t bytes : {size_t{4096}, size_t{4096} * 3, size_t{2} << 20}) {
    auto buffer = Buffer::Allocate(bytes, "test");
    ASSERT_TRUE(buffer.ok());
    for (size_t i = 0; i < Buffer::kSlackBytes; ++i) EXPECT_EQ(buffer->data()[bytes + i], std::byte{0});
  }
}

TEST(Buffer, IsZeroFilledAlignedAndRefusesWhatTheMachineLacks) {
  auto small = Buffer::Allocate(100, "test");
  ASSERT_TRUE(small.ok());
  auto large = Buffer::Allocate(5 << 20, "test");
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large->data()) % (2 << 20), 0u);
  for (size_t i = 0; i < large->size(); i += 4096) EXPECT_EQ(large->data()[i], std::byte{0});
  const auto impossible = Buffer::Allocate(size_t{1} << 60, "the moon");
  ASSERT_FALSE(impossible.ok());
  EXPECT_EQ(impossible.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(impossible.status().message().find("the moon"), std::string::npos);
}

}  // namespace
}  // namespace sixfold
