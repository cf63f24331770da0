// What happens at the edges of the products: packing of weights, preparing of activations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/matmul.h"
#include "kernels/testing/random_matrix.h"

namespace sixfold {
namespace {

using testing::RandomMatrix;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kF8E4M3,
                            DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                            DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                            DType::kMXFP4, DType::kMXFP4Split};

TEST(Pack, TakesNoMoreBytesThanStored) {
  ThreadPool pool(2);
  for (DType dtype : kTypes) {
    if (dtype == DType::kF8E4M3) continue;  // one fp32 scale a group instead of one a 128-block
    const RandomMatrix m(dtype, 48, 768, 81);
    const auto w = PackMatrix(m.view, {.act = ActDType::kInt8, .leaves = Leaves::Whole(768)}, pool);
    ASSERT_TRUE(w.ok());
    EXPECT_EQ(w->stream.size(), m.bytes.size() + (dtype == DType::kMXFP4Split ? m.scale_bytes.size() : 0))
        << NameOf(dtype);
  }
}

TEST(Pack, SizeIsKnownBeforePacking) {
  ThreadPool pool(1);
  for (DType dtype : kTypes) {
    for (ActDType act : {ActDType::kF32, ActDType::kBF16, ActDType::kInt8}) {
      for (int64_t n : {1, 16, 50}) {
        const RandomMatrix m(dtype, n, 768, 82);
        const bool plain = InfoOf(dtype).block_elements == 1 && dtype != DType::kF8E4M3;
        for (const Leaves& leaves : {Leaves::Whole(768), Leaves{{0, 256, 768}},
                                     plain ? Leaves{{0, 1, 100, 768}} : Leaves::Whole(768)}) {
          const auto w = PackMatrix(m.view, {.act = act, .leaves = leaves}, pool);
          ASSERT_TRUE(w.ok());
          EXPECT_EQ(static_cast<int64_t>(w->stream.size()), PackedBytes(dtype, act, n, leaves))
              << NameOf(dtype) << " " << NameOf(act) << " " << n;
        }
      }
    }
  }
}

// A matrix that lies the other way round, a set of every second row, and a cut of columns pack as their copies do.
TEST(Pack, TakesStridedViews) {
  ThreadPool pool(1);
  const auto stream = [&](const MatrixView& view) {
    auto w = PackMatrix(view, {.act = ActDType::kInt8, .leaves = Leaves::Whole(view.cols)}, pool);
    SF_CHECK(w.ok());
    return std::vector<std::byte>(w->stream.data(), w->stream.data() + w->stream.size());
  };
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const RandomMatrix m(dtype, 40, 70, 84);
    const auto width = static_cast<size_t>(InfoOf(dtype).block_bytes);
    std::vector<std::byte> turned(m.bytes.size());
    for (size_t r = 0; r < 40; ++r) {
      for (size_t c = 0; c < 70; ++c) {
        std::memcpy(turned.data() + (c * 40 + r) * width, m.bytes.data() + (r * 70 + c) * width, width);
      }
    }
    MatrixView view = m.view;
    view.data = turned.data();
    view.row_stride_bytes = static_cast<int64_t>(width);
    view.col_stride_bytes = static_cast<int64_t>(40 * width);
    EXPECT_EQ(stream(view), stream(m.view)) << NameOf(dtype);
    EXPECT_EQ(stream(view.EveryRow(1, 2).Rows(3, 18).Cols(32, 69)),
              stream(m.view.EveryRow(1, 2).Rows(3, 18).Cols(32, 69))) << NameOf(dtype);
    std::vector<float> a(70), b(70);
    DequantizeRow(view, 39, a.data());
    DequantizeRow(m.view, 39, b.data());
    EXPECT_EQ(a, b) << NameOf(dtype);
  }
}

TEST(Pack, EverySecondRowOfSplitMxfp4KeepsItsScales) {
  const RandomMatrix m(DType::kMXFP4Split, 9, 96, 85);
  const MatrixView odd = m.view.EveryRow(1, 2);
  ASSERT_EQ(odd.rows, 4);
  const MatrixView cut = odd.Rows(1, 4).Cols(32, 96);
  std::vector<float> whole(96), part(64);
  for (int64_t r = 0; r < cut.rows; ++r) {
    DequantizeRow(m.view, 2 * (r + 1) + 1, whole.data());
    DequantizeRow(cut, r, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 32)) << r;
  }
}

// Told part by part, and the same stream as without being told.
TEST(Pack, SaysWhichColumnsAreDone) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 12 * 1024 + 5, kColumns = 512;
  const RandomMatrix m(DType::kF32, kRows, kColumns, 83);
  const Leaves leaves = Leaves::Whole(kColumns);
  int64_t done = 0, calls = 0;
  const auto told = PackMatrix(m.view,
                               {.leaves = leaves,
                                .on_rows =
                                    [&](int64_t begin, int64_t end) {
                                      EXPECT_EQ(begin, done);
                                      done = end;
                                      ++calls;
                                    }},
                               pool);
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(done, kRows);
  EXPECT_GT(calls, 1);
  const auto plain = PackMatrix(m.view, {.leaves = leaves}, pool);
  ASSERT_TRUE(plain.ok());
  ASSERT_EQ(told->stream.size(), plain->stream.size());
  EXPECT_EQ(std::memcmp(told->stream.data(), plain->stream.data(), plain->stream.size()), 0);
}

TEST(Prepare, SizeIsKnownBeforePreparing) {
  ThreadPool pool(1, SetFloatMode);
  for (Isa isa : {Isa::kScalar, DetectIsa()}) {
    MatMul matmul(isa, pool);
    for (ActDType act : {ActDType::kF32, ActDType::kBF16, ActDType::kInt8}) {
      const Leaves leaves{{0, 18, 72}};
      const std::vector<float> x(static_cast<size_t>(17 * 72), 1.0f);
      Activations a;
      matmul.Prepare(x.data(), 17, 72, leaves, act, {}, &a);
      const size_t bytes = a.values.size() * 4 + a.bf16.size() * 2 + a.codes.size() +
                           a.scales.size() * 4 + a.sums32.size() * 4;
      EXPECT_EQ(static_cast<int64_t>(bytes), ActivationsBytes(leaves, act, 17, isa));
    }
  }
}

TEST(Pack, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const RandomMatrix q4(DType::kQ4_K, 16, 512, 91), f8(DType::kF8E4M3, 16, 256, 92);
  const auto code = [&](const MatrixView& view, const Leaves& leaves,
                        std::span<const int32_t> order = {}) {
    return PackMatrix(view, {.leaves = leaves, .row_order = order}, pool).status().code();
  };
  EXPECT_EQ(code(q4.view, {{0, 128, 512}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(q4.view, {{0, 256}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(q4.view, {{0, 256, 256, 512}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(q4.view, Leaves{}), StatusCode::kInvalidArgument);
  const int32_t bad[] = {0, 16};
  EXPECT_EQ(code(q4.view, Leaves::Whole(512), bad), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(f8.view, {{0, 112, 256}}),
            StatusCode::kInvalidArgument);  // 112 to 144 has two scales
  EXPECT_EQ(code(f8.view, {{0, 96, 256}}), StatusCode::kOk);
  MatrixView unreadable = q4.view;
  unreadable.dtype = DType::kQ2_K;
  EXPECT_EQ(code(unreadable, Leaves::Whole(512)), StatusCode::kInvalidArgument);
}

TEST(Prepare, Int8CodesAreAmaxOver127RoundedToEven) {
  ThreadPool pool(1, SetFloatMode);
  MatMul matmul(DetectIsa(), pool);
  std::vector<float> x(96, 0.0f);
  x[0] = 127.0f, x[1] = -0.5f, x[2] = 1.5f, x[3] = 2.5f, x[4] = -127.0f;
  x[64] = std::numeric_limits<float>::infinity();
  Activations a;
  matmul.Prepare(x.data(), 1, 96, Leaves::Whole(96), ActDType::kInt8, {}, &a);
  EXPECT_EQ(a.scales[0], 1.0f);
  EXPECT_EQ(a.scales[1], 0.0f);
  EXPECT_TRUE(std::isnan(a.scales[2]));
  const std::vector<float> want = {127, 0, 2, 2, -127};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(a.values[i], want[i]) << i;
  EXPECT_EQ(a.values[64], 0.0f);
  EXPECT_EQ(a.sums32[0], 4.0f);
}

// Against the scalar rounding of dequantize.h, whatever the length; rows come from where the index
// says.
TEST(Prepare, RowsAreRoundedPaddedAndGathered) {
  ThreadPool pool(2, SetFloatMode);
  MatMul matmul(Isa::kScalar, pool);
  const Leaves leaves{{0, 18, 72}};  // padded to 32 and 64
  testing::Random random(3);
  std::vector<float> x(5 * 80);
  for (float& v : x) v = random.Normal() * std::exp2(static_cast<float>(random.Bits() % 60) - 30);
  x[2 * 80 + 1] = std::numeric_limits<float>::quiet_NaN();
  x[2 * 80 + 2] = -1e-39f;
  Activations a;
  const std::vector<int32_t> order = {4, 2, 2};
  matmul.Prepare(x.data(), 3, 80, leaves, ActDType::kBF16, order, &a);
  ASSERT_EQ(a.k_padded, 96);
  ASSERT_EQ(a.leaf_block, (std::vector<int64_t>{0, 1, 3}));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 96; ++k) {
      const float got = a.values[r * 96 + k];
      const bool padding = (k >= 18 && k < 32) || k >= 86;
      const size_t column = k < 18 ? k : k - 14;
      const float stored = padding ? 0.0f : x[static_cast<size_t>(order[r]) * 80 + column];
      if (std::isnan(stored)) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_EQ(got, std::fabs(stored) < 1e-38f ? 0.0f : BF16ToF32(F32ToBF16(stored)))
            << r << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace sixfold
