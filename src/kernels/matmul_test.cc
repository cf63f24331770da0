#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "base/testing/cases.h"
#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"
#include "kernels/stored_block.h"
#include "kernels/testing/amx_emulator.h"
#include "kernels/testing/random_matrix.h"
#include "kernels/testing/tile_counter.h"

namespace sixfold {
namespace {

using testing::Random;
using testing::RandomMatrix;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kF8E4M3,
                            DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                            DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                            DType::kMXFP4, DType::kMXFP4Split};
constexpr ActDType kActs[] = {ActDType::kF32, ActDType::kBF16, ActDType::kInt8};

// Sanitizers make the oracle and the emulated tiles about twenty times slower.
constexpr int64_t kMaxRows = FullOr(128, 33);

// Every ISA that this machine runs, tiles by emulation where it has none.
std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  const Isa widest = DetectIsa() == Isa::kAvx512 ? Isa::kAmx : DetectIsa();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa <= widest) isas.push_back(isa);
  }
  return isas;
}

// Leaves of K that suit `dtype`: one, some of odd lengths, and eight.
std::vector<Leaves> LeavesFor(DType dtype) {
  switch (InfoOf(dtype).block_elements) {
    case 1:
      if (dtype == DType::kF8E4M3) return {Leaves::Whole(200), {{0, 64, 128, 256, 300}}};
      return {Leaves::Whole(1),
              Leaves::Whole(100),
              {{0, 18, 36, 54}},
              {{0, 24, 48, 72, 96, 120}},
              {{0, 72, 144, 216, 288, 360, 432, 504, 576}}};
    case 32:
      return {Leaves::Whole(96), {{0, 32, 64, 160}}, {{0, 32, 64, 96, 128, 160, 192, 224, 288}}};
    default: return {Leaves::Whole(512), {{0, 256, 512, 768}}};
  }
}

std::vector<float> RandomRows(int64_t rows, int64_t stride, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(rows * stride));
  for (float& v : x) v = random.Normal();
  return x;
}

PackedMatrix Pack(const MatrixView& view, ActDType act, const Leaves& leaves, ThreadPool& pool,
                  std::span<const int32_t> row_order = {}) {
  auto packed = PackMatrix(view, {.act = act, .leaves = leaves, .row_order = row_order}, pool);
  SF_CHECK(packed.ok());
  return std::move(*packed);
}

std::vector<float> Multiply(MatMul& matmul, const Activations& a, const PackedMatrix& w) {
  std::vector<float> out(static_cast<size_t>(a.rows * w.n), -1.0f);
  const MatMulTask task{&a, &w, out.data(), w.n};
  matmul.Run({&task, 1});
  return out;
}

::testing::AssertionResult SameBits(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " vs " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << got[i] << " vs " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

std::string Name(DType dtype, ActDType act) {
  return std::string(NameOf(dtype)) + " x " + std::string(NameOf(act));
}

// A stored row as codes and scales, read from the file's form and not from the packed stream.
struct LiteralRow {
  int group = 0;  // 0: dense
  bool minima = false;
  std::vector<float> codes;  // weights when dense
  std::vector<float> scale, minimum;
};

LiteralRow ReadRow(const MatrixView& view, int64_t row, ActDType act, const Leaves& leaves) {
  LiteralRow out;
  out.codes.resize(static_cast<size_t>(view.cols));
  if (!IsBlockType(view.dtype)) {
    if (view.dtype != DType::kF8E4M3) {
      DequantizeRow(view, row, out.codes.data());
      if (act == ActDType::kBF16) {
        for (float& w : out.codes) w = BF16ToF32(F32ToBF16(w));
      }
      return out;
    }
    out.group = 32;
    for (int64_t k = 0; k < view.cols; ++k) {
      out.codes[static_cast<size_t>(k)] = F8E4M3ToF32(static_cast<uint8_t>(view.Row(row)[k]));
    }
    for (int v = 0; v < leaves.count(); ++v) {
      for (int64_t k = leaves.begin[v]; k < leaves.begin[v + 1]; k += 32) {
        out.scale.push_back(BlockScaleAt(view.scales, row, k));
      }
    }
    return out;
  }
  const auto dtype = view.dtype;
  const int offset = dtype == DType::kQ4_0   ? 8
                     : dtype == DType::kQ5_0 ? 16
                     : dtype == DType::kQ6_K ? 32
                                             : 0;
  const bool k_type = InfoOf(dtype).block_elements == 256;
  out.minima = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
               dtype == DType::kQ5_K;
  if (dtype == DType::kMXFP4 || dtype == DType::kMXFP4Split) {
    const bool split = dtype == DType::kMXFP4Split;
    out.group = 32;
    for (int64_t k = 0; k < view.cols; ++k) {
      const int64_t i = k % 32;
      const auto* data = reinterpret_cast<const uint8_t*>(view.Row(row)) + k / 32 * (split ? 16 : 17);
      const int pair = split ? data[i / 2] : data[1 + i % 16];
      const int code = (split ? i % 2 == 0 : i < 16) ? pair & 15 : pair >> 4;
      const float magnitude = (code & 7) < 2 ? 0.5f * static_cast<float>(code & 7)
                                             : std::ldexp(1.0f + 0.5f * static_cast<float>(code & 1), (code >> 1 & 3) - 1);
      out.codes[static_cast<size_t>(k)] = code < 8 ? magnitude : -magnitude;
      if (i != 0) continue;
      const uint8_t scale = split ? static_cast<uint8_t>(view.scales.data[row * view.scales.cols + k / 32]) : data[0];
      out.scale.push_back(scale == 0 ? 0.0f : std::ldexp(1.0f, scale - 127));
    }
    return out;
  }
  StoredBlock block;
  const std::byte* data = view.Row(row);
  for (int64_t k = 0; k < view.cols; data += InfoOf(dtype).block_bytes) {
    ReadStoredBlock(dtype, reinterpret_cast<const uint8_t*>(data), &block);
    out.group = block.group;
    for (int i = 0; i < block.elements; ++i, ++k) {
      const int code =
          dtype == DType::kQ8_0 ? static_cast<int8_t>(block.codes[i]) : block.codes[i] - offset;
      out.codes[static_cast<size_t>(k)] = static_cast<float>(code);
    }
    for (int g = 0; g < block.elements / block.group; ++g) {
      const float d = F16ToF32(block.d);
      const float m = F16ToF32(block.m);
      out.scale.push_back(k_type ? d * static_cast<float>(block.scales[g]) : d);
      out.minimum.push_back(k_type ? -(m * static_cast<float>(block.minima[g % 8])) : m);
    }
  }
  return out;
}

// numerics.h, word for word, for one leaf of one row and one column. `a` and `w` are padded with
// zeros to whole blocks.
float LiteralLeaf(const std::vector<float>& a, const std::vector<float>& w, const LiteralRow& row,
                  size_t first_group, const float* a_scale) {
  float c = 0;
  const int step = row.group == 0 ? 32 : row.group;
  for (size_t k0 = 0, g = first_group; k0 < a.size(); k0 += static_cast<size_t>(step), ++g) {
    float e = 0, o = 0, se = 0, so = 0;
    for (size_t k = k0; k < k0 + static_cast<size_t>(step); k += 2) {
      e = std::fma(a[k], w[k], e);
      o = std::fma(a[k + 1], w[k + 1], o);
      se += a[k];
      so += a[k + 1];
    }
    const float p = e + o;
    const float s = se + so;
    const float as = a_scale == nullptr ? 1.0f : a_scale[k0 / 32];
    if (row.group == 0) {
      c = a_scale == nullptr ? c + p : std::fma(p, as, c);
      continue;
    }
    c = std::fma(p, a_scale == nullptr ? row.scale[g] : row.scale[g] * as, c);
    if (row.minima) c = std::fma(s, a_scale == nullptr ? row.minimum[g] : row.minimum[g] * as, c);
  }
  return c;
}

// Merges leaves level by level: pairs of neighbours, an odd one out moves up as it is.
float TreeSum(std::vector<float> nodes) {
  while (nodes.size() > 1) {
    std::vector<float> up;
    for (size_t i = 0; i + 1 < nodes.size(); i += 2) up.push_back(nodes[i] + nodes[i + 1]);
    if (nodes.size() % 2 == 1) up.push_back(nodes.back());
    nodes = up;
  }
  return nodes[0];
}

float LiteralDot(const Activations& a, int64_t r, const LiteralRow& row, const Leaves& leaves) {
  std::vector<float> sums;
  for (int v = 0; v < leaves.count(); ++v) {
    const int64_t block = a.leaf_block[static_cast<size_t>(v)];
    const auto padded =
        static_cast<size_t>((a.leaf_block[static_cast<size_t>(v) + 1] - block) * 32);
    const float* x = a.values.data() + r * a.k_padded + block * 32;
    std::vector<float> w(row.codes.begin() + leaves.begin[v],
                         row.codes.begin() + leaves.begin[v + 1]);
    w.resize(padded);
    const float* scales =
        a.act == ActDType::kInt8 ? a.scales.data() + r * (a.k_padded / 32) + block : nullptr;
    const size_t first_group = row.group == 0 ? 0 : static_cast<size_t>(block * 32 / row.group);
    sums.push_back(LiteralLeaf({x, x + padded}, w, row, first_group, scales));
  }
  return TreeSum(sums);
}

class MatMulTest : public ::testing::Test {
 protected:
  MatMulTest() : pool_(2, SetFloatMode) {
    if (DetectIsa() == Isa::kAvx512) emulator_.emplace();
  }
  std::optional<testing::AmxEmulator> emulator_;
  ThreadPool pool_;
};

TEST_F(MatMulTest, OracleEqualsTheContractWrittenOut) {
  MatMul matmul(Isa::kScalar, pool_);
  for (DType dtype : kTypes) {
    for (ActDType act : kActs) {
      for (const Leaves& leaves : LeavesFor(dtype)) {
        const RandomMatrix m(dtype, 35, leaves.k(), 5 + static_cast<uint64_t>(leaves.count()));
        const PackedMatrix w = Pack(m.view, act, leaves, pool_);
        const auto x = RandomRows(2, leaves.k(), 9);
        Activations a;
        matmul.Prepare(x.data(), 2, leaves.k(), leaves, act, {}, &a);
        std::vector<float> got(35);
        for (int64_t r = 0; r < 2; ++r) {
          RefMatMulRow(a, r, w, got.data());
          for (int64_t n = 0; n < 35; ++n) {
            const float want = LiteralDot(a, r, ReadRow(m.view, n, act, leaves), leaves);
            ASSERT_EQ(std::bit_cast<uint32_t>(got[static_cast<size_t>(n)]),
                      std::bit_cast<uint32_t>(want))
                << Name(dtype, act) << " leaves " << leaves.count() << " column " << n;
          }
        }
      }
    }
  }
}

// Against values of the gguf kind and plain double sums: the error of fp32 chains is below K *
// 2^-24 * sum |a||w|.
TEST_F(MatMulTest, OracleIsCloseToDoubleSumsOfDequantisedRows) {
  MatMul matmul(Isa::kScalar, pool_);
  for (DType dtype : kTypes) {
    const Leaves leaves = LeavesFor(dtype).back();
    const int64_t k = leaves.k();
    const RandomMatrix m(dtype, 20, k, 21);
    const auto x = RandomRows(3, k, 22);
    for (ActDType act : kActs) {
      const PackedMatrix w = Pack(m.view, act, leaves, pool_);
      Activations a;
      matmul.Prepare(x.data(), 3, k, leaves, act, {}, &a);
      std::vector<float> got(20), row(static_cast<size_t>(k));
      for (int64_t r = 0; r < 3; ++r) {
        RefMatMulRow(a, r, w, got.data());
        for (int64_t n = 0; n < 20; ++n) {
          DequantizeRow(m.view, n, row.data());
          double sum = 0, magnitude = 0, amax = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double product = static_cast<double>(x[static_cast<size_t>(r * k + i)]) *
                                   row[static_cast<size_t>(i)];
            sum += product;
            magnitude += std::fabs(product);
            amax = std::max(amax, std::fabs(static_cast<double>(row[static_cast<size_t>(i)])));
          }
          // Types with minima add s * m beside p * d: two sums larger than their difference.
          double bound = static_cast<double>(k) * 0x1p-22 * magnitude +
                         static_cast<double>(k) * 0x1p-18 * amax;
          if (act == ActDType::kBF16) bound += 0x1p-8 * 2 * magnitude;
          if (act == ActDType::kInt8) bound += 6.0 / 254 * amax * static_cast<double>(k);
          ASSERT_NEAR(got[static_cast<size_t>(n)], sum, bound) << Name(dtype, act);
        }
      }
    }
  }
}

TEST_F(MatMulTest, EveryIsaAndRowCountEqualsTheOracle) {
  constexpr int64_t kColumns = 55;
  Activations whole, a;
  for (DType dtype : kTypes) {
    for (ActDType act : kActs) {
      for (const Leaves& leaves : LeavesFor(dtype)) {
        const int64_t k = leaves.k();
        const RandomMatrix m(dtype, kColumns, k, 31);
        const PackedMatrix w = Pack(m.view, act, leaves, pool_);
        const auto x = RandomRows(kMaxRows, k + 3, 32);
        MatMul(Isa::kScalar, pool_).Prepare(x.data(), kMaxRows, k + 3, leaves, act, {}, &whole);
        std::vector<float> want(static_cast<size_t>(kMaxRows * kColumns));
        for (int64_t r = 0; r < kMaxRows; ++r)
          RefMatMulRow(whole, r, w, want.data() + r * kColumns);
        for (Isa isa : Isas()) {
          MatMul matmul(isa, pool_);
          for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 128}) {
            if (rows > (isa == Isa::kScalar ? 3 : kMaxRows)) break;  // scalar is the oracle itself
            matmul.Prepare(x.data(), rows, k + 3, leaves, act, {}, &a);
            ASSERT_TRUE(SameBits(Multiply(matmul, a, w),
                                 std::span(want).first(static_cast<size_t>(rows * kColumns))))
                << NameOf(isa) << " " << Name(dtype, act) << " rows " << rows << " leaves "
                << leaves.count();
          }
        }
      }
    }
  }
}

TEST_F(MatMulTest, ARowIsTheSameAmongGarbageNeighbours) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), 3e38f, 1e-40f, -0.0f};
  for (Isa isa : Isas()) {
    MatMul matmul(isa, pool_);
    for (DType dtype : kTypes) {
      for (ActDType act : kActs) {
        const Leaves leaves = LeavesFor(dtype).back();
        const int64_t k = leaves.k();
        const RandomMatrix m(dtype, 40, k, 41);
        const PackedMatrix w = Pack(m.view, act, leaves, pool_);
        auto x = RandomRows(19, k, 42);
        Activations a;
        matmul.Prepare(x.data() + 11 * k, 1, k, leaves, act, {}, &a);
        const auto alone = Multiply(matmul, a, w);
        for (int64_t i = 0; i < 19 * k; ++i) {
          if (i / k != 11) x[static_cast<size_t>(i)] = kBad[(i * 7 + i / k) % 5];
        }
        const std::vector<int32_t> order = {3,  11, 4,  5,  6,  7,  8, 9, 10, 12,
                                            13, 14, 15, 16, 17, 18, 0, 1, 11, 2};
        matmul.Prepare(x.data(), 20, k, leaves, act, order, &a);
        const auto among = Multiply(matmul, a, w);
        ASSERT_TRUE(SameBits(std::span(among).subspan(40, 40), alone))
            << NameOf(isa) << " " << Name(dtype, act);
        ASSERT_TRUE(SameBits(std::span(among).subspan(18 * 40, 40), alone))
            << NameOf(isa) << " " << Name(dtype, act);
      }
    }
  }
}

// A rank holds leaves [begin, end) of the reduction: its columns of W and its part of x.
TEST_F(MatMulTest, LeavesCutOverRanksAddUpToTheWhole) {
  for (Isa isa : Isas()) {
    MatMul matmul(isa, pool_);
    for (DType dtype : kTypes) {
      const int64_t unit = InfoOf(dtype).block_elements == 256 ? 256
                           : dtype == DType::kF8E4M3           ? 64
                                                               : 32;
      const Leaves leaves{
          {0, unit, 2 * unit, 4 * unit, 5 * unit, 6 * unit}};  // five leaves: an odd tree
      const RandomMatrix m(dtype, 33, leaves.k(), 51);
      const auto x = RandomRows(9, leaves.k(), 52);
      for (ActDType act : kActs) {
        const auto part = [&](int begin, int end) {
          Leaves local;
          for (int v = begin; v <= end; ++v)
            local.begin.push_back(leaves.begin[v] - leaves.begin[begin]);
          const MatrixView cut = m.view.Cols(leaves.begin[begin], leaves.begin[end]);
          const PackedMatrix w = Pack(cut, act, local, pool_);
          Activations a;
          matmul.Prepare(x.data() + leaves.begin[begin], 9, leaves.k(), local, act, {}, &a);
          return Multiply(matmul, a, w);
        };
        const auto whole = part(0, 5);
        const auto left = part(0, 2), right = part(2, 4), last = part(4, 5);
        std::vector<float> sum(whole.size());
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = (left[i] + right[i]) + last[i];
        ASSERT_TRUE(SameBits(sum, whole)) << NameOf(isa) << " " << Name(dtype, act);
        const auto four = part(0, 4);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = four[i] + last[i];
        ASSERT_TRUE(SameBits(sum, whole)) << NameOf(isa) << " " << Name(dtype, act);
      }
    }
  }
}

TEST_F(MatMulTest, ColumnCutsAndRowOrderGiveTheSameColumns) {
  for (Isa isa : Isas()) {
    MatMul matmul(isa, pool_);
    for (DType dtype : kTypes) {
      const Leaves leaves = LeavesFor(dtype).back();
      const RandomMatrix m(dtype, 70, leaves.k(), 61);
      const auto x = RandomRows(6, leaves.k(), 62);
      Activations a;
      matmul.Prepare(x.data(), 6, leaves.k(), leaves, ActDType::kBF16, {}, &a);
      const auto whole = Multiply(matmul, a, Pack(m.view, ActDType::kBF16, leaves, pool_));
      const auto cut =
          Multiply(matmul, a, Pack(m.view.Rows(13, 50), ActDType::kBF16, leaves, pool_));
      std::vector<int32_t> order;
      for (int32_t n = 0; n < 70; ++n) order.push_back(n * 3 % 70);
      const auto permuted =
          Multiply(matmul, a, Pack(m.view, ActDType::kBF16, leaves, pool_, order));
      for (size_t r = 0; r < 6; ++r) {
        ASSERT_TRUE(SameBits(std::span(cut).subspan(r * 37, 37),
                             std::span(whole).subspan(r * 70 + 13, 37)));
        for (size_t n = 0; n < 70; ++n) {
          ASSERT_EQ(std::bit_cast<uint32_t>(permuted[r * 70 + n]),
                    std::bit_cast<uint32_t>(whole[r * 70 + static_cast<size_t>(order[n])]));
        }
      }
    }
  }
}

// Several tasks of one call, shared by teams of one to three, with a padded output and an expert
// without rows.
TEST_F(MatMulTest, TeamsOfAnySizeGiveTheSameBitsAndStayInsideTheOutput) {
  const Leaves leaves = Leaves::Whole(256);
  const RandomMatrix q4(DType::kQ4_1, 300, 256, 71), bf16(DType::kBF16, 130, 256, 72),
      f8(DType::kF8E4M3, 17, 256, 73);
  const auto x = RandomRows(40, 256, 74);
  for (Isa isa : Isas()) {
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3}) {
      ThreadPool team(threads, SetFloatMode);
      MatMul matmul(isa, team);
      std::vector<PackedMatrix> w;
      for (const auto* m : {&q4, &bf16, &f8})
        w.push_back(Pack(m->view, ActDType::kBF16, leaves, team));
      Activations all, few, none;
      matmul.Prepare(x.data(), 40, 256, leaves, ActDType::kBF16, {}, &all);
      matmul.Prepare(x.data(), 3, 256, leaves, ActDType::kBF16, {}, &few);
      matmul.Prepare(x.data(), 0, 256, leaves, ActDType::kBF16, {}, &none);
      std::vector<float> out(40 * 305 + 40 * 130 + 3 * 17 + 3, -7.0f);
      float* second = out.data() + 40 * 305;
      float* third = second + 40 * 130;
      const std::vector<MatMulTask> tasks = {{&all, &w[0], out.data(), 305},
                                             {&none, &w[1], second, 130},
                                             {&all, &w[1], second, 130},
                                             {&few, &w[2], third, 17}};
      matmul.Run(tasks);
      for (size_t r = 0; r < 40; ++r) {
        for (size_t pad = 300; pad < 305; ++pad) ASSERT_EQ(out[r * 305 + pad], -7.0f);
      }
      for (size_t i = 0; i < 3; ++i) ASSERT_EQ(out[out.size() - 1 - i], -7.0f);
      results.push_back(out);
    }
    EXPECT_TRUE(SameBits(results[1], results[0])) << NameOf(isa);
    EXPECT_TRUE(SameBits(results[2], results[0])) << NameOf(isa);
  }
}

TEST_F(MatMulTest, DenormalsInWeightsAndActivationsAreFlushed) {
  std::vector<uint16_t> weights(32, 0x0040);  // bf16 denormals
  weights[0] = 0x3f80;
  const MatrixView view{.dtype = DType::kBF16,
                        .data = reinterpret_cast<std::byte*>(weights.data()),
                        .rows = 1,
                        .cols = 32,
                        .row_stride_bytes = 64};
  std::vector<float> x(32, 3e38f);
  x[0] = 1e-39f;
  for (Isa isa : Isas()) {
    MatMul matmul(isa, pool_);
    for (ActDType act : {ActDType::kF32, ActDType::kBF16}) {
      Activations a;
      matmul.Prepare(x.data(), 1, 32, Leaves::Whole(32), act, {}, &a);
      EXPECT_EQ(Multiply(matmul, a, Pack(view, act, Leaves::Whole(32), pool_))[0], 0.0f)
          << NameOf(isa);
    }
  }
}

// Tile instructions of `work` in this thread.
template <typename Work>
long TileInstructionsOf(const Work& work) {
  if (DetectIsa() == Isa::kAmx) {
    testing::TileCounter counter;
    work();
    return counter.Stop();
  }
  const long before = testing::AmxEmulator::CountInThisThread();
  work();
  return testing::AmxEmulator::CountInThisThread() - before;
}

// Without this, an AMX path that never takes a tile instruction would pass every test above.
TEST_F(MatMulTest, ManyRowsUseTileInstructions) {
  if (DetectIsa() < Isa::kAvx512) return;  // what stands beside the tiles is AVX-512, which this machine cannot run
  ThreadPool alone(1, SetFloatMode);
  MatMul matmul(Isa::kAmx, alone);
  const RandomMatrix bf16(DType::kBF16, 48, 96, 85), q4(DType::kQ4_1, 48, 96, 86);
  const auto x = RandomRows(40, 96, 87);
  Activations a;
  matmul.Prepare(x.data(), 40, 96, Leaves::Whole(96), ActDType::kBF16, {}, &a);
  for (const auto* m : {&bf16, &q4}) {
    const PackedMatrix w = Pack(m->view, ActDType::kBF16, Leaves::Whole(96), alone);
    EXPECT_GE(TileInstructionsOf([&] { Multiply(matmul, a, w); }), 3 * 3 * 3);
  }
}

// The counter is for machines with tiles; here it must work on every machine.
TEST(TileCounter, CountsTileInstructionsThatAreRun) {
  std::optional<testing::AmxEmulator> emulator;
  if (DetectIsa() != Isa::kAmx) emulator.emplace();
  const auto count_of = [](const auto& work) {
    testing::TileCounter counter;
    work();
    return counter.Stop();
  };
  EXPECT_EQ(count_of([] { asm volatile("nop\n nop"); }), 0);
  // TILERELEASE, passed over.
  EXPECT_EQ(count_of([] {
              asm volatile("jmp 1f\n .byte 0xc4, 0xe2, 0x78, 0x49, 0xc0\n 1: nop");
            }),
            0);
  EXPECT_EQ(count_of([] {
              asm volatile(
                  ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0\n nop\n"
                  ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0\n nop");
            }),
            2);
}

// All 256 codes, NaN among them.
TEST_F(MatMulTest, EveryF8CodeHasItsValueOnEveryIsa) {
  std::vector<uint8_t> codes(256 * 32);
  for (size_t n = 0; n < 256; ++n) codes[n * 32 + n % 32] = static_cast<uint8_t>(n);
  const MatrixView view{.dtype = DType::kF8E4M3,
                        .data = reinterpret_cast<std::byte*>(codes.data()),
                        .rows = 256,
                        .cols = 32,
                        .row_stride_bytes = 32};
  const std::vector<float> x(16 * 32, 1.0f);
  for (Isa isa : Isas()) {
    MatMul matmul(isa, pool_);
    for (int64_t rows : {1, 16}) {
      Activations a;
      matmul.Prepare(x.data(), rows, 32, Leaves::Whole(32), ActDType::kBF16, {}, &a);
      const auto out = Multiply(matmul, a, Pack(view, ActDType::kBF16, Leaves::Whole(32), pool_));
      for (size_t n = 0; n < 256; ++n) {
        const float want = F8E4M3ToF32(static_cast<uint8_t>(n));
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(out[n])) << NameOf(isa) << " code " << n;
        } else {
          EXPECT_EQ(out[n], want) << NameOf(isa) << " code " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sixfold
