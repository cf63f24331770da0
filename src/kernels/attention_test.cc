#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/testing/cases.h"
#include "kernels/math.h"
#include "kernels/numerics.h"
#include "kernels/ops.h"
#include "kernels/testing/attention_case.h"

namespace sixfold {
namespace {

using Case = AttentionCase;
using Request = AttentionRequest;
using Shape = AttentionCaseShape;

// The definition in ops.h as a recursion over the tree, written apart from the kernels: dot products on zero-padded
// blocks, one leaf at a time, no binary counter.
struct Node {
  bool empty = true;
  float m = 0, l = 0;
  std::vector<float> o;
};

float DotOfBlocks(std::vector<float> a, std::vector<float> b, const std::vector<bool>& present) {
  float c = 0;
  for (size_t block = 0; block < a.size(); block += 32) {
    float e = 0, o = 0;
    bool any = false;
    for (size_t k = block; k < std::min(a.size(), block + 32); ++k) {
      if (!present[k]) continue;
      any = true;
      float& chain = k % 2 == 0 ? e : o;
      chain = std::fma(a[k], b[k], chain);
    }
    if (any) c = c + (e + o);
  }
  return c;
}

Node Evaluate(const Case& c, size_t request, int head, const float* q, int64_t position, int level, int64_t index) {
  const Shape& s = c.shape;
  if (level > 0) {
    Node left = Evaluate(c, request, head, q, position, level - 1, 2 * index);
    Node right = Evaluate(c, request, head, q, position, level - 1, 2 * index + 1);
    if (right.empty) return left;
    if (left.empty) return right;
    Node parent{false, std::max(left.m, right.m), 0, std::vector<float>(s.v_dim)};
    const float a = ExpF(left.m - parent.m), b = ExpF(right.m - parent.m);
    parent.l = std::fma(left.l, a, right.l * b);
    for (int d = 0; d < s.v_dim; ++d) parent.o[d] = std::fma(left.o[d], a, right.o[d] * b);
    return parent;
  }
  const int kv_head = head / (s.heads / s.kv_heads);
  Node leaf{true, -std::numeric_limits<float>::infinity(), 0, std::vector<float>(s.v_dim)};
  std::vector<float> p(s.chunk), v(s.chunk);
  std::vector<bool> present(s.chunk);
  for (int i = 0; i < s.chunk; ++i) {
    const int64_t j = index * s.chunk + i;
    present[i] = j <= position && (s.window == 0 || position - s.window < j);
    if (!present[i]) continue;
    leaf.empty = false;
    const float* key = &c.k[request][(j * s.kv_heads + kv_head) * s.k_dim];
    std::vector<float> rounded(q, q + s.k_dim);
    if (s.bf16)
      for (float& value : rounded) value = RoundToBf16(value);
    p[i] = DotOfBlocks(rounded, {key, key + s.k_dim}, std::vector<bool>(s.k_dim, true)) *
           (1.0f / std::sqrt(static_cast<float>(s.k_dim)));
    leaf.m = std::max(leaf.m, p[i]);
  }
  for (float& value : p) value = s.bf16 ? RoundToBf16(ExpF(value - leaf.m)) : ExpF(value - leaf.m);
  leaf.l = DotOfBlocks(p, std::vector<float>(s.chunk, 1.0f), present);
  for (int d = 0; d < s.v_dim; ++d) {
    for (int i = 0; i < s.chunk; ++i)
      if (present[i]) v[i] = c.v[request][((index * s.chunk + i) * s.kv_heads + kv_head) * s.v_dim + d];
    leaf.o[d] = DotOfBlocks(p, v, present);
  }
  return leaf;
}

std::vector<float> Recursive(const Case& c) {
  const Shape& s = c.shape;
  std::vector<float> out;
  int64_t row = 0;
  for (size_t request = 0; request < c.requests.size(); ++request) {
    for (int64_t r = 0; r < c.requests[request].rows; ++r, ++row) {
      const int64_t position = c.requests[request].context + r;
      int level = 0;
      while ((int64_t{s.chunk} << level) <= position) ++level;
      for (int h = 0; h < s.heads; ++h) {
        const Node root = Evaluate(c, request, h, &c.q[(row * s.heads + h) * s.k_dim], position, level, 0);
        if (!s.sinks) {
          for (int d = 0; d < s.v_dim; ++d) out.push_back(root.o[d] / root.l);
          continue;
        }
        const float max = std::max(root.m, c.sinks[h]);
        const float a = ExpF(root.m - max), total = std::fma(root.l, a, ExpF(c.sinks[h] - max));
        for (int d = 0; d < s.v_dim; ++d) out.push_back(root.o[d] * a / total);
      }
    }
  }
  return out;
}

// Softmax over all visible keys in double, from the stored values: what the result approximates.
std::vector<double> Naive(const Case& c) {
  const Shape& s = c.shape;
  std::vector<double> out;
  int64_t row = 0;
  for (size_t request = 0; request < c.requests.size(); ++request) {
    for (int64_t r = 0; r < c.requests[request].rows; ++r, ++row) {
      const int64_t position = c.requests[request].context + r;
      const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
      for (int h = 0; h < s.heads; ++h) {
        const int kv_head = h / (s.heads / s.kv_heads);
        std::vector<double> score;
        for (int64_t j = first; j <= position; ++j) {
          double dot = 0;
          for (int d = 0; d < s.k_dim; ++d)
            dot +=
                double{c.q[(row * s.heads + h) * s.k_dim + d]} * c.k[request][(j * s.kv_heads + kv_head) * s.k_dim + d];
          score.push_back(dot / std::sqrt(static_cast<double>(s.k_dim)));
        }
        double m = *std::max_element(score.begin(), score.end());
        if (s.sinks) m = std::max(m, double{c.sinks[h]});
        double l = s.sinks ? std::exp(c.sinks[h] - m) : 0;
        std::vector<double> o(s.v_dim);
        for (int64_t j = first; j <= position; ++j) {
          const double p = std::exp(score[j - first] - m);
          l += p;
          for (int d = 0; d < s.v_dim; ++d) o[d] += p * c.v[request][(j * s.kv_heads + kv_head) * s.v_dim + d];
        }
        for (const double value : o) out.push_back(value / l);
      }
    }
  }
  return out;
}

const std::vector<std::pair<Shape, std::vector<Request>>>& Cases() {
  static const std::vector<std::pair<Shape, std::vector<Request>>> cases = {
      {{.heads = 9, .kv_heads = 3, .k_dim = 64, .v_dim = 64, .chunk = 32}, {{0, 70}, {200, 1}, {37, 5}}},
      {{.heads = 9, .kv_heads = 3, .k_dim = 64, .v_dim = 64, .chunk = 256}, {{0, 40}, {600, 1}, {510, 4}, {255, 2}}},
      {{.heads = 1, .kv_heads = 1, .k_dim = 1, .v_dim = 1, .chunk = 16}, {{0, 20}, {77, 1}}},
      {{.heads = 4, .kv_heads = 4, .k_dim = 18, .v_dim = 18, .chunk = 16}, {{0, 35}, {90, 1}}},
      {{.heads = 6, .kv_heads = 1, .k_dim = 24, .v_dim = 24, .chunk = 64, .window = 20}, {{0, 90}, {150, 3}}},
      {{.heads = 8, .kv_heads = 2, .k_dim = 80, .v_dim = 80, .chunk = 64, .window = 64}, {{0, 50}, {127, 1}, {128, 1}}},
      {{.heads = 2, .kv_heads = 1, .k_dim = 128, .v_dim = 128, .chunk = 128, .window = 100}, {{120, 30}, {300, 1}}},
      {{.heads = 16, .kv_heads = 1, .k_dim = 192, .v_dim = 128, .chunk = 64}, {{0, 20}, {100, 1}}},
      {{.heads = 5, .kv_heads = 5, .k_dim = 33, .v_dim = 7, .chunk = 512}, {{0, 33}, {520, 2}}},
      {{.heads = 3, .kv_heads = 3, .k_dim = 65, .v_dim = 130, .bf16 = false, .chunk = 32}, {{0, 45}, {99, 1}}},
      {{.heads = 40, .kv_heads = 1, .k_dim = 16, .v_dim = 32, .bf16 = false, .chunk = 16, .window = 1},
       {{0, 40}, {64, 1}}},
      {{.heads = 6, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .bf16 = false, .chunk = 128, .window = 33},
       {{0, 60}, {250, 12}}},
      // Latent attention: one K/V head whose values are prefixes of its keys; the published sizes last.
      {{.heads = 6, .kv_heads = 1, .k_dim = 28, .v_dim = 20, .chunk = 32, .v_in_k = true}, {{0, 40}, {70, 1}, {9, 3}}},
      {{.heads = 14, .kv_heads = 1, .k_dim = 45, .v_dim = 37, .bf16 = false, .chunk = 64, .v_in_k = true},
       {{0, 33}, {130, 1}}},
      {{.heads = 3, .kv_heads = 1, .k_dim = 31, .v_dim = 31, .bf16 = false, .chunk = 16, .v_in_k = true}, {{40, 2}}},
      {{.heads = 16, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .chunk = 64, .v_in_k = true}, {{0, 5}, {100, 1}}},
      {{.heads = 5, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .chunk = 32, .v_in_k = true}, {{0, 5}, {100, 1}}},
      {{.heads = 8, .kv_heads = 1, .chunk = 32, .sinks = true}, {{0, 70}, {200, 1}, {37, 5}, {1200, 1}}},
      {{.heads = 6, .kv_heads = 2, .k_dim = 12, .v_dim = 12, .bf16 = false, .chunk = 16, .window = 9, .sinks = true},
       {{0, 40}, {64, 1}, {0, 1}}},
      {{.heads = 5, .kv_heads = 5, .k_dim = 33, .v_dim = 7, .chunk = 64, .sinks = true}, {{0, 33}, {520, 2}}},
  };
  return cases;
}

TEST(Attention, EveryIsaAndPoolSizeEqualsTheRecursiveDefinition) {
  SetFloatMode();
  for (size_t i = 0; i < Cases().size(); ++i) {
    Case c(Cases()[i].first, Cases()[i].second);
    const std::vector<float> want = Recursive(c);
    for (const Isa isa : IsasHere())
      for (int threads = 1; threads <= 3; ++threads)
        EXPECT_TRUE(SameBits(c.Run(isa, threads, c.Sequences()), want))
            << "case " << i << ", " << NameOf(isa) << ", " << threads;
  }
}

TEST(Attention, IsCloseToSoftmaxInDouble) {
  SetFloatMode();
  for (size_t i = 0; i < Cases().size(); ++i) {
    Case c(Cases()[i].first, Cases()[i].second);
    if (c.shape.bf16)  // the rounding of q is part of the definition, not of its error
      for (float& value : c.q) value = RoundToBf16(value);
    const std::vector<float> got = c.Run(DetectIsa(), 2, c.Sequences());
    const std::vector<double> want = Naive(c);
    double error = 0, norm = 0, worst = 0;
    for (size_t k = 0; k < got.size(); ++k) {
      error += (got[k] - want[k]) * (got[k] - want[k]);
      norm += want[k] * want[k];
      worst = std::max(worst, std::abs(got[k] - want[k]));
    }
    EXPECT_LT(std::sqrt(error / norm), c.shape.bf16 ? 3e-3 : 1e-6) << "case " << i;
    EXPECT_LT(worst, c.shape.bf16 ? 3e-2 : 1e-5) << "case " << i;
  }
}

TEST(Attention, APrefillInPiecesEqualsTheWholeAndEveryDecodeStep) {
  SetFloatMode();
  for (const Shape& shape : {Shape{.heads = 9, .kv_heads = 3, .chunk = 32},
                             Shape{.heads = 4, .kv_heads = 4, .k_dim = 24, .v_dim = 24, .chunk = 64, .window = 50},
                             Shape{.heads = 4, .kv_heads = 2, .k_dim = 24, .v_dim = 24, .chunk = 16, .sinks = true},
                             Shape{.heads = 8, .kv_heads = 1, .k_dim = 80, .v_dim = 80, .bf16 = false, .chunk = 16}}) {
    Case c(shape, {{0, FullOr(150, 70)}});
    for (const Isa isa : IsasHere()) {
      const std::vector<float> whole = c.Run(isa, 1, c.Sequences());
      for (const int64_t step : {1, 7, 64}) {
        std::vector<float> pieces(whole.size());
        ThreadPool pool(2, SetFloatMode);
        Ops ops(isa, pool);
        for (int64_t row = 0; row < c.rows; row += step) {
          const AttentionSequence sequence{row, std::min(step, c.rows - row), row, c.pages[0].data()};
          ops.Attention(c.Args({sequence}, pieces.data()));
        }
        EXPECT_TRUE(SameBits(pieces, whole)) << NameOf(isa) << ", pieces of " << step;
      }
    }
  }
}

TEST(Attention, RequestsTogetherEqualRequestsAlone) {
  SetFloatMode();
  Case c({.heads = 6, .kv_heads = 2, .chunk = 64}, {{100, 1}, {0, 33}, {31, 1}, {64, 17}, {500, 1}, {0, 1}});
  for (const Isa isa : IsasHere()) {
    const std::vector<float> together = c.Run(isa, 3, c.Sequences());
    ThreadPool pool(1, SetFloatMode);
    Ops ops(isa, pool);
    std::vector<float> alone(together.size());
    for (const AttentionSequence& sequence : c.Sequences()) ops.Attention(c.Args({sequence}, alone.data()));
    EXPECT_TRUE(SameBits(alone, together)) << NameOf(isa);
  }
}

TEST(Attention, ALongDecodeIsTheSameHoweverItsKeysAreShared) {
  SetFloatMode();
  for (const int chunk : {16, 64, 256, 512}) {
    for (const int64_t window : {0, 1500}) {
      Case c({.heads = 4, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .chunk = chunk, .window = window},
             {{FullOr(5000, 1800), 1}, {FullOr(3333, 1111), 1}});
      const std::vector<float> want = c.Run(Isa::kScalar, 1, c.Sequences());
      for (const Isa isa : IsasHere())
        for (int threads = 1; threads <= 4; ++threads)
          EXPECT_TRUE(SameBits(c.Run(isa, threads, c.Sequences()), want))
              << NameOf(isa) << ", " << threads << ", chunk " << chunk;
    }
  }
}

TEST(Attention, PagesBeforeTheWindowAreNotLookedAt) {
  SetFloatMode();
  Case c({.heads = 6, .kv_heads = 2, .chunk = 64, .window = 40}, {{300, 20}, {500, 1}, {96, 1}, {0, 90}});
  const std::vector<float> want = c.Run(Isa::kScalar, 1, c.Sequences());
  for (size_t i = 0; i < c.requests.size(); ++i) {
    const int64_t first_seen = c.requests[i].context - 39;
    for (int64_t page = 0; (page + 1) * 16 <= first_seen; ++page) c.pages[i][page] = 1 << 30;  // far outside
  }
  for (const Isa isa : IsasHere())
    for (const int threads : {1, 2}) EXPECT_TRUE(SameBits(c.Run(isa, threads, c.Sequences()), want)) << NameOf(isa);
}

TEST(Attention, NanAmongTheVisibleKeysIsNotHidden) {
  SetFloatMode();
  for (const bool bf16 : {true, false}) {
    Case c({.heads = 3, .kv_heads = 1, .bf16 = bf16, .chunk = 32}, {{0, 64}});
    const int64_t slot = c.Slot(c.pages[0], 40, 0);
    std::fill_n(c.k_pages.begin() + slot * 64 * c.Width(), 4, std::byte{0xff});
    for (const Isa isa : IsasHere()) {
      const std::vector<float> out = c.Run(isa, 1, c.Sequences());
      for (int64_t row = 0; row < 64; ++row) EXPECT_EQ(std::isnan(out[row * 3 * 64]), row >= 40) << NameOf(isa);
    }
  }
}

TEST(Attention, ScoresFarApartStayFinite) {
  SetFloatMode();
  for (const bool bf16 : {true, false}) {
    Case c({.heads = 3, .kv_heads = 1, .bf16 = bf16, .chunk = 16}, {{0, 80}});
    for (float& value : c.q) value *= 60.0f;  // neighbouring leaves differ by more than ExpF reaches
    const std::vector<float> want = Recursive(c);
    for (const float value : want) ASSERT_TRUE(std::isfinite(value));
    for (const Isa isa : IsasHere()) EXPECT_TRUE(SameBits(c.Run(isa, 1, c.Sequences()), want)) << NameOf(isa);
  }
}

TEST(Attention, RandomShapesAgree) {
  SetFloatMode();
  std::mt19937 bits(7);
  for (int round = 0; round < FullOr(40, 8); ++round) {
    Shape s;
    s.kv_heads = 1 + bits() % 3;
    s.heads = s.kv_heads * (1 + bits() % 9);
    s.k_dim = 1 + bits() % 100;
    s.v_dim = 1 + bits() % 100;
    s.v_in_k = s.v_dim <= s.k_dim && bits() % 2;
    s.bf16 = bits() % 2;
    s.chunk = 16 << (bits() % 6);
    s.window = bits() % 2 ? 1 + bits() % 200 : 0;
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      const auto context = static_cast<int64_t>(bits() % 150);
      requests.push_back({context, static_cast<int64_t>(1 + bits() % (i == 0 ? 40 : 4))});
    }
    Case c(s, requests, round);
    const std::vector<float> want = c.Run(Isa::kScalar, 1, c.Sequences());
    for (const float value : want) ASSERT_TRUE(std::isfinite(value));
    for (const Isa isa : IsasHere())
      EXPECT_TRUE(SameBits(c.Run(isa, 2, c.Sequences()), want))
          << NameOf(isa) << " round " << round << " heads " << s.heads << "/" << s.kv_heads << " dims " << s.k_dim
          << "/" << s.v_dim << " bf16 " << s.bf16 << " chunk " << s.chunk << " window " << s.window;
  }
}

}  // namespace
}  // namespace sixfold
