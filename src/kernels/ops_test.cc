#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/math.h"
#include "kernels/numerics.h"

namespace sixfold {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const int64_t kLengths[] = {1, 2, 7, 15, 16, 17, 31, 48, 63, 64, 65, 127, 128, 200, 576, 1000, 1537};

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(DetectIsa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

std::vector<float> Random(int64_t n, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> x(n);
  for (float& value : x) value = normal(bits);
  return x;
}

// Ordinary values with zeros of both signs, denormals and large ones among them.
std::vector<float> Awkward(int64_t n, uint32_t seed) {
  std::vector<float> x = Random(n, seed, 4.0f);
  const float special[] = {0.0f, -0.0f, 1e-39f, -1e-39f, 1e30f, -1e30f, 88.7f, -88.7f, 1e-20f};
  std::mt19937 bits(seed + 1);
  for (float& value : x)
    if (bits() % 5 == 0) value = special[bits() % std::size(special)];
  return x;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Runs op(ops, &values) on every ISA with one to three threads; all results equal the scalar one with one thread.
template <typename Op>
std::vector<float> OnEveryIsa(const std::vector<float>& input, const Op& op) {
  SetFloatMode();
  ThreadPool one(1);
  std::vector<float> want = input;
  Ops scalar(Isa::kScalar, one);
  op(scalar, &want);
  for (const Isa isa : Isas()) {
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads, SetFloatMode);
      Ops ops(isa, pool);
      std::vector<float> got = input;
      op(ops, &got);
      EXPECT_TRUE(SameBits(got, want)) << NameOf(isa) << " with " << threads << " threads, " << input.size()
                                       << " values";
    }
  }
  return want;
}

TEST(RmsNorm, AgreesOnEveryIsaAndWithDouble) {
  const float eps = 1e-5f;
  for (const int64_t n : kLengths) {
    for (const int64_t rows : {int64_t{1}, int64_t{5}, 40'000 / n + 1}) {
      const std::vector<float> x = Random(rows * (n + 3), 1), weight = Random(n, 2);
      const auto out = OnEveryIsa(std::vector<float>(rows * n), [&](Ops& ops, std::vector<float>* y) {
        ops.RmsNorm(x.data(), n + 3, rows, n, weight.data(), eps, y->data(), n);
      });
      for (int64_t r = 0; r < std::min<int64_t>(rows, 5); ++r) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double{x[r * (n + 3) + i]} * x[r * (n + 3) + i];
        for (int64_t i = 0; i < n; ++i) {
          const double want = x[r * (n + 3) + i] / std::sqrt(sum / n + eps) * weight[i];
          ASSERT_NEAR(out[r * n + i], want, 1e-6 * std::abs(want));
        }
      }
    }
  }
}

TEST(RmsNorm, OrderOfTheSumIsTheDocumentedOne) {
  SetFloatMode();
  const int64_t n = 1000;
  const std::vector<float> x = Random(n, 3), weight(n, 1.0f);
  std::vector<std::vector<float>> level(1, std::vector<float>(64));
  for (int64_t i = 0; i < n; ++i) level[0][i % 64] = std::fma(x[i], x[i], level[0][i % 64]);
  float v[16];
  for (int j = 0; j < 16; ++j) v[j] = (level[0][j] + level[0][j + 16]) + (level[0][j + 32] + level[0][j + 48]);
  const auto pair = [&](int j, int step) { return v[j] + v[j + step]; };
  for (int j = 0; j < 8; ++j) v[j] = pair(j, 8);
  for (int j = 0; j < 4; ++j) v[j] = pair(j, 4);
  const float sum = (v[0] + v[2]) + (v[1] + v[3]);
  const float factor = 1.0f / std::sqrt(sum / n + 1e-6f);
  ThreadPool pool(1);
  Ops ops(DetectIsa(), pool);
  std::vector<float> out = x;
  ops.RmsNorm(out.data(), n, 1, n, weight.data(), 1e-6f, out.data(), n);  // in place
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[i], x[i] * factor);
}

TEST(RmsNorm, ARowIsTheSameAloneAndAmongOthers) {
  SetFloatMode();
  const int64_t n = 577, rows = 60;
  const std::vector<float> x = Awkward(rows * n, 4), weight = Random(n, 5);
  ThreadPool pool(2, SetFloatMode);
  for (const Isa isa : Isas()) {
    Ops ops(isa, pool);
    std::vector<float> all(rows * n), alone(n);
    ops.RmsNorm(x.data(), n, rows, n, weight.data(), 1e-6f, all.data(), n);
    for (int64_t r = 0; r < rows; ++r) {
      ops.RmsNorm(x.data() + r * n, n, 1, n, weight.data(), 1e-6f, alone.data(), n);
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * n, n * sizeof(float)), 0);
    }
  }
}

void NormHeads(Ops& ops, float* x, int64_t rows, int heads, int dim, const float* weight, float eps) {
  std::vector<float> sums(rows * heads);
  ops.HeadSquares(x, rows, heads, dim, sums.data());
  ops.ScaleHeads(x, rows, {heads, heads, dim, sums.data(), weight, eps});
}

TEST(RmsNormHeads, AgreesOnEveryIsaAndWithDouble) {
  for (const int heads : {1, 3, 7, 16}) {
    for (const int dim : {1, 18, 64, 80, 130}) {
      const int64_t n = int64_t{heads} * dim, rows = 20'000 / n + 2;
      const std::vector<float> x = Random(rows * n, 6), weight = Random(n, 7);
      const auto out = OnEveryIsa(x, [&](Ops& ops, std::vector<float>* y) {
        NormHeads(ops, y->data(), rows, heads, dim, weight.data(), 1e-5f);
      });
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
      for (int64_t i = 0; i < n; ++i) {
        const double want = x[i] / std::sqrt(sum / n + 1e-5f) * weight[i];
        ASSERT_NEAR(out[i], want, 1e-6 * std::abs(want));
      }
    }
  }
}

TEST(RmsNormHeads, HalvesOfTheHeadsAreTreeNodes) {
  // With eight heads the sum is node(2,0) + node(2,1): a tensor-parallel rank of two can compute either.
  SetFloatMode();
  const int heads = 8, dim = 32, n = heads * dim;
  const std::vector<float> x = Random(n, 8), weight(n, 1.0f);
  float sums[8];
  for (int h = 0; h < heads; ++h) {
    float lane[32];
    for (int i = 0; i < dim; ++i) lane[i] = std::fma(x[h * dim + i], x[h * dim + i], 0.0f);
    for (int j = 0; j < 16; ++j) lane[j] += lane[j + 16];
    for (int step = 8; step >= 1; step /= 2)
      for (int j = 0; j < step; ++j) lane[j] += lane[j + step];
    sums[h] = lane[0];
  }
  const float left = (sums[0] + sums[1]) + (sums[2] + sums[3]), right = (sums[4] + sums[5]) + (sums[6] + sums[7]);
  const float factor = 1.0f / std::sqrt((left + right) / n + 1e-6f);
  ThreadPool pool(1);
  Ops ops(DetectIsa(), pool);
  std::vector<float> out = x;
  NormHeads(ops, out.data(), 1, heads, dim, weight.data(), 1e-6f);
  for (int i = 0; i < n; ++i) ASSERT_EQ(out[i], x[i] * factor);
}

TEST(Rope, AgreesOnEveryIsaAndRotatesPairs) {
  for (const auto& [dim, rotary] : {std::pair{2, 2}, {18, 18}, {24, 24}, {64, 64}, {80, 32}, {128, 128}, {65, 34}}) {
    const int heads = 3, rows = 90, stride = heads * dim + 5;
    std::vector<float> cos(200 * rotary / 2), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(CosD(0.37 * i));
      sin[i] = static_cast<float>(SinD(0.37 * i));
    }
    std::vector<int32_t> positions(rows);
    for (int r = 0; r < rows; ++r) positions[r] = (r * 37 + 5) % 200;
    const std::vector<float> x = Random(rows * stride, 9);
    const auto out = OnEveryIsa(x, [&](Ops& ops, std::vector<float>* y) {
      ops.Rope(y->data(), stride, rows, heads, dim, rotary, positions.data(), cos.data(), sin.data());
    });
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < stride; ++i) {
        const int d = i % dim, half = rotary / 2;
        if (i >= heads * dim || d >= rotary) {
          ASSERT_EQ(out[r * stride + i], x[r * stride + i]) << "not part of the rotation";
        } else if (d < half) {
          const double a = x[r * stride + i], b = x[r * stride + i + half];
          const double c = cos[positions[r] * half + d], s = sin[positions[r] * half + d];
          ASSERT_NEAR(out[r * stride + i], a * c - b * s, 1e-6);
          ASSERT_NEAR(out[r * stride + i + half], b * c + a * s, 1e-6);
        }
      }
    }
  }
}

TEST(Elementwise, AgreeOnEveryIsaAndWithTheirDefinition) {
  for (const int64_t n :
       {int64_t{1}, int64_t{5}, int64_t{16}, int64_t{33}, int64_t{64}, int64_t{1000}, int64_t{40'001}}) {
    const std::vector<float> x = Awkward(n, 10), y = Awkward(n, 11);
    const auto silu =
        OnEveryIsa(x, [&](Ops& ops, std::vector<float>* out) { ops.SiluMul(out->data(), y.data(), n, out->data()); });
    const auto sum = OnEveryIsa(x, [&](Ops& ops, std::vector<float>* out) { ops.Add(out->data(), y.data(), n); });
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(silu[i], SiluF(x[i]) * y[i]);
      ASSERT_EQ(sum[i], x[i] + y[i]);
    }
  }
}

TEST(Combine, AddsSlotsInOrderOnEveryIsa) {
  constexpr int64_t kRows = 3, kN = 37;
  constexpr int kTopK = 4;
  const std::vector<float> slots = Random(kRows * kTopK * kN, 71);
  const std::vector<float> weights = Random(kRows * kTopK, 72);
  std::vector<int32_t> place;
  for (int32_t i = 0; i < kRows * kTopK; ++i) place.push_back((i * 5 + 3) % (kRows * kTopK));
  for (const auto rounding : {CombineArgs::Rounding::kNone, CombineArgs::Rounding::kBF16}) {
    std::vector<float> expected(kRows * kN);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < kN; ++n) {
        float sum = 0.0f;
        for (int64_t i = r * kTopK; i < (r + 1) * kTopK; ++i) {
          const float y = slots[place[i] * kN + n];
          sum = std::fma(weights[i], rounding == CombineArgs::Rounding::kBF16 ? RoundToBf16(y) : y, sum);
        }
        expected[r * kN + n] = sum;
      }
    }
    const auto combined = OnEveryIsa(std::vector<float>(kRows * kN), [&](Ops& ops, std::vector<float>* out) {
      std::vector<float> copy = slots;
      ops.Combine({.slots = copy.data(), .slot_place = place.data(), .weights = weights.data(), .rows = kRows,
                   .top_k = kTopK, .n = kN, .rounding = rounding, .out = out->data()});
    });
    EXPECT_EQ(combined, expected);
  }
}

TEST(Elementwise, SiluMulCoversTheWholeRangeOfExp) {
  const std::vector<float> ones(100'000, 1.0f);
  std::vector<float> x(100'000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -90.0f + 180.0f * i / x.size();
  x[7] = kInf;
  const auto out = OnEveryIsa(
      x, [&](Ops& ops, std::vector<float>* y) { ops.SiluMul(y->data(), ones.data(), y->size(), y->data()); });
  EXPECT_EQ(out[7], kInf);
  EXPECT_EQ(out[0], 0.0f);
}

TEST(Elementwise, ClampedSwiGluIsItsFormulaAndClampsAsItSays) {
  const Ops::ClampedSwiGlu form{.alpha = 1.702f, .limit = 7.0f};
  for (const int64_t n : {int64_t{1}, int64_t{5}, int64_t{16}, int64_t{33}, int64_t{1000}, int64_t{40'001}}) {
    std::vector<float> gate = Awkward(n, 14), up = Awkward(n, 15);
    for (int64_t i = 0; i < n; ++i) gate[i] *= i % 3 == 0 ? 8.0f : 1.0f, up[i] *= i % 5 == 0 ? 8.0f : 1.0f;
    const auto out = OnEveryIsa(gate, [&](Ops& ops, std::vector<float>* x) {
      ops.ClampedSwiGluMul(x->data(), up.data(), n, form, x->data());
    });
    for (int64_t i = 0; i < n; ++i) {
      const float g = std::min(gate[i], 7.0f), u = std::clamp(up[i], -7.0f, 7.0f);
      ASSERT_EQ(out[i], (u + 1.0f) * (g / (1.0f + ExpF(-(g * 1.702f))))) << i;
      const double exact = (double{u} + 1) * g / (1 + std::exp(-1.702f * double{g}));
      ASSERT_NEAR(out[i], exact, 1e-5 * std::abs(exact) + 1e-30) << i;
    }
  }
  ThreadPool pool(1);
  for (const Isa isa : Isas()) {
    const float gate[] = {9.0f, 7.0f, -9.0f, 1.0f, 1.0f, 1.0f, kNan, 1.0f}, up[] = {0, 0, 0, 9.0f, 7.0f, -9.0f, 0, kNan};
    float out[8];
    Ops(isa, pool).ClampedSwiGluMul(gate, up, 8, form, out);
    EXPECT_EQ(out[0], out[1]);  // the gate has no lower bound
    EXPECT_LT(std::abs(out[2]), 1e-5f);
    EXPECT_EQ(out[3], out[4]);
    EXPECT_LT(out[5], 0.0f);
    EXPECT_NEAR(out[5] / out[4], -6.0 / 8.0, 1e-6);
    EXPECT_TRUE(std::isnan(out[6]) && std::isnan(out[7]));
  }
}

TEST(Elementwise, NanStaysNan) {
  ThreadPool pool(1);
  for (const Isa isa : Isas()) {
    Ops ops(isa, pool);
    std::vector<float> x(40, 2.0f), y(40, 1.0f), z = x;
    x[3] = kNan;
    x[37] = std::bit_cast<float>(0x7fffffffu);
    z = x;
    ops.SiluMul(x.data(), y.data(), 40, x.data());
    ops.Clamp(z.data(), 40, 1, 40, 1.0f);
    for (const auto& v : {x, z})
      for (int i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(v[i]), i == 3 || i == 37) << NameOf(isa);
  }
}

TEST(Elementwise, AddBiasAndClampWorkOnRowsWithAStride) {
  const int64_t rows = 50, n = 1001, stride = 1010;
  const std::vector<float> x = Awkward(rows * stride, 12), bias = Random(n, 13);
  const auto sum =
      OnEveryIsa(x, [&](Ops& ops, std::vector<float>* y) { ops.AddBias(y->data(), stride, rows, n, bias.data()); });
  const auto clamped =
      OnEveryIsa(x, [&](Ops& ops, std::vector<float>* y) { ops.Clamp(y->data(), stride, rows, n, 1.5f); });
  for (int64_t i = 0; i < rows * stride; ++i) {
    const bool inside = i % stride < n;
    ASSERT_EQ(sum[i], inside ? x[i] + bias[i % stride] : x[i]);
    ASSERT_EQ(clamped[i], inside && std::abs(x[i]) > 1.5f ? std::copysign(1.5f, x[i]) : x[i]);
  }
}

TEST(WriteKv, StoresRowsWhereThePagesSay) {
  SetFloatMode();
  const int kv_heads = 2, k_dim = 18, v_dim = 7;
  const int32_t pages_a[] = {3, 0, 4}, pages_b[] = {1};
  // Rows 0-19 at positions 14-33 of a, rows 20-24 at positions 2-6 of b.
  const AttentionSequence sequences[] = {{.first_row = 0, .rows = 20, .first_position = 14, .pages = pages_a},
                                         {.first_row = 20, .rows = 5, .first_position = 2, .pages = pages_b}};
  const std::vector<float> k = Awkward(25 * kv_heads * k_dim, 14), v = Awkward(25 * kv_heads * v_dim, 15);
  for (const Isa isa : Isas()) {
    for (const bool bf16 : {true, false}) {
      ThreadPool pool(2, SetFloatMode);
      Ops ops(isa, pool);
      const size_t width = bf16 ? 2 : 4;
      std::vector<std::byte> kb(5 * kv_heads * 16 * k_dim * width, std::byte{0xee});
      std::vector<std::byte> vb(5 * kv_heads * 16 * v_dim * width, std::byte{0xee});
      ops.WriteKv(k.data(), v.data(), sequences, {kb.data(), vb.data(), bf16, kv_heads, k_dim, v_dim});
      size_t written = 0;
      const auto check = [&](const std::vector<float>& from, const std::vector<std::byte>& to, int dim) {
        for (int row = 0; row < 25; ++row) {
          const int position = row < 20 ? 14 + row : 2 + row - 20;
          const int page = row < 20 ? pages_a[position / 16] : pages_b[position / 16];
          for (int h = 0; h < kv_heads; ++h) {
            for (int d = 0; d < dim; ++d) {
              const float want = from[(row * kv_heads + h) * dim + d];
              const std::byte* at = to.data() + (((page * kv_heads + h) * 16 + position % 16) * dim + d) * width;
              uint32_t got = 0;
              std::memcpy(&got, at, width);
              ASSERT_EQ(got, bf16 ? Bf16FromFloat(want) : std::bit_cast<uint32_t>(want)) << NameOf(isa);
              written += width;
            }
          }
        }
      };
      check(k, kb, k_dim);
      check(v, vb, v_dim);
      size_t untouched = 0;
      for (const auto* bytes : {&kb, &vb})
        for (const std::byte b : *bytes) untouched += b == std::byte{0xee};
      EXPECT_GE(untouched, kb.size() + vb.size() - written);
    }
  }
}

TEST(ExpScaled, EqualsTheScalarFormAlsoInTails) {
  SetFloatMode();
  for (const int64_t n : {1, 7, 8, 15, 16, 17, 63, 1000}) {
    std::vector<float> x = Random(n, 21, 30.0f);
    x[n / 2] = -kInf;
    std::vector<float> out(n, -1.0f);
    ExpScaled(x, 5.0f, 1.7f, out);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[i], ExpF((x[i] - 5.0f) * 1.7f)) << n << " " << i;
  }
}

TEST(LogSoftmax, FollowsItsTreeAndAgreesWithLongDouble) {
  SetFloatMode();
  for (const int64_t vocab : {1, 2, 63, 64, 65, 129, 1000, 4097, 49'152}) {
    const std::vector<float> x = Random(vocab, 16, 3.0f);
    const LogSoftmaxStats got = LogSoftmax(x);
    struct Node {
      float m, l;
    };
    const int64_t width = (vocab + 63) / 64;
    const auto node = [&](const auto& self, int level, int64_t i) -> Node {
      if (level > 0) {
        const Node a = self(self, level - 1, 2 * i), b = self(self, level - 1, 2 * i + 1);
        if (a.l == 0) return b;
        if (b.l == 0) return a;
        const float m = std::max(a.m, b.m);
        return {m, std::fma(a.l, ExpF(a.m - m), b.l * ExpF(b.m - m))};
      }
      Node leaf{-kInf, 0};
      for (int64_t k = i * width; k < std::min(vocab, (i + 1) * width); ++k) leaf.m = std::max(leaf.m, x[k]);
      float lane[64] = {};
      for (int64_t k = i * width; k < std::min(vocab, (i + 1) * width); ++k)
        lane[(k - i * width) % 64] += ExpF(x[k] - leaf.m);
      for (int j = 0; j < 16; ++j) lane[j] = (lane[j] + lane[j + 16]) + (lane[j + 32] + lane[j + 48]);
      for (int step = 8; step >= 1; step /= 2)
        for (int j = 0; j < step; ++j) lane[j] += lane[j + step];
      leaf.l = lane[0];
      return leaf;
    };
    const Node want = node(node, 6, 0);
    EXPECT_EQ(got.max, want.m) << vocab;
    EXPECT_EQ(got.log_sum, LogF(want.l)) << vocab;
    long double sum = 0;
    for (const float v : x) sum += expl(static_cast<long double>(v) - got.max);
    EXPECT_NEAR(got.log_sum, static_cast<double>(logl(sum)), 1e-6) << vocab;
  }
}

TEST(LogSoftmax, ForbiddenTokensCountNothing) {
  SetFloatMode();
  std::vector<float> x(1000, -kInf);
  EXPECT_EQ(LogSoftmax(x).log_sum, 0.0f);
  x[700] = 3.5f;
  EXPECT_EQ(LogSoftmax(x).max, 3.5f);
  EXPECT_EQ(LogSoftmax(x).log_sum, 0.0f);
  x[2] = 3.5f;
  EXPECT_EQ(LogSoftmax(x).log_sum, LogF(2.0f));
}

TEST(ArgMax, LowestIndexWinsAndNanIsNeverChosen) {
  for (const int64_t n : kLengths) {
    std::vector<float> x = Random(n, 17);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = 100.0f;
      if (i + 1 < n) x[n - 1] = 100.0f;
      EXPECT_EQ(ArgMax(x), i);
      x[i] = x[n - 1] = -1.0f;
    }
  }
  EXPECT_EQ(ArgMax(std::vector<float>{kNan, -2.0f, kNan, -1.0f, kNan}), 3);
  EXPECT_EQ(ArgMax(std::vector<float>{kNan, -kInf, kNan}), 1);
  EXPECT_EQ(ArgMax(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(ArgMax(std::vector<float>{-1.0f, -0.0f, 0.0f}), 1);
}

}  // namespace
}  // namespace sixfold
