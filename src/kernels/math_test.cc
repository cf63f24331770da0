#include "kernels/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/testing/cases.h"
#include "kernels/numerics.h"
#include "kernels/ops.h"

namespace sixfold {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double UlpOf(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, exponent - 24);
}

// Every 83rd float (every 4007th under a sanitizer) between two positive bounds.
template <typename Visit>
void ForFloats(float from, float to, const Visit& visit) {
  for (uint32_t u = std::bit_cast<uint32_t>(from); u <= std::bit_cast<uint32_t>(to); u += FullOr(83, 4007))
    visit(std::bit_cast<float>(u));
}

TEST(Math, ExpFIsWithinOneAndAHalfUlp) {
  SetFloatMode();
  double worst = 0;
  const auto visit = [&](float x) {
    for (const float y : {x, -x}) {
      if (y < kExpLow || y > kExpHigh) continue;
      const float got = ExpF(y);
      const long double want = expl(static_cast<long double>(y));
      worst = std::max(worst, static_cast<double>(fabsl(got - want)) / UlpOf(static_cast<float>(want)));
    }
  };
  ForFloats(1e-5f, 88.8f, visit);
  RecordProperty("max_ulp", std::to_string(worst));
  EXPECT_LT(worst, 1.5);
  EXPECT_GT(worst, 0.5);  // a polynomial in fp32 is not correctly rounded: the measure itself works
}

TEST(Math, ExpFAtItsEdges) {
  SetFloatMode();
  EXPECT_EQ(ExpF(0.0f), 1.0f);
  EXPECT_EQ(ExpF(-0.0f), 1.0f);
  EXPECT_EQ(ExpF(1e-30f), 1.0f);
  EXPECT_EQ(ExpF(-kInf), 0.0f);
  EXPECT_EQ(ExpF(-87.31f), 0.0f);
  EXPECT_GT(ExpF(-87.3f), std::numeric_limits<float>::min());
  EXPECT_EQ(ExpF(kInf), kInf);
  EXPECT_EQ(ExpF(88.71f), kInf);
  EXPECT_LT(ExpF(88.7f), kInf);
  EXPECT_TRUE(std::isnan(ExpF(kNan)));
  EXPECT_TRUE(std::isnan(ExpF(std::bit_cast<float>(0x7fffffffu))));
}

TEST(Math, LogFIsWithinAnUlp) {
  SetFloatMode();
  double worst = 0;
  ForFloats(1.2e-38f, 3.4e38f, [&](float x) {
    const long double want = logl(static_cast<long double>(x));
    if (want == 0) return;
    worst = std::max(worst, static_cast<double>(fabsl(LogF(x) - want)) / UlpOf(static_cast<float>(want)));
  });
  EXPECT_LT(worst, 0.51);
  EXPECT_EQ(LogF(1.0f), 0.0f);
  EXPECT_EQ(LogF(0.0f), -kInf);
  EXPECT_EQ(LogF(kInf), kInf);
  EXPECT_TRUE(std::isnan(LogF(-1.0f)));
}

TEST(Math, SiluFFollowsItsDefinition) {
  SetFloatMode();
  for (float x = -80; x < 80; x += 0.00731f) {
    const long double want = x / (1.0L + expl(-static_cast<long double>(x)));
    EXPECT_NEAR(SiluF(x), static_cast<double>(want), 5e-7 * std::abs(static_cast<double>(want))) << x;
  }
  EXPECT_EQ(SiluF(0.0f), 0.0f);
  EXPECT_EQ(SiluF(-100.0f), 0.0f);
  EXPECT_EQ(SiluF(100.0f), 100.0f);
}

// Largest relative error over `count` points that grow or shrink by a fixed factor, with both signs.
template <typename Got, typename Want>
double WorstRelative(double from, double to, int count, const Got& got, const Want& want) {
  double worst = 0;
  count /= FullOr(1, 20);
  const double factor = std::pow(to / from, 1.0 / count);
  double x = from;
  for (int i = 0; i < count; ++i, x *= factor) {
    const long double w = want(static_cast<long double>(x));
    if (w == 0) continue;
    worst = std::max(worst, static_cast<double>(fabsl((got(x) - w) / w)));
  }
  return worst;
}

TEST(Math, DoubleFunctionsAreWithin1e15) {
  SetFloatMode();
  const auto exp_negative = [](double x) { return ExpD(-x); };
  EXPECT_LT(WorstRelative(1e-9, 709.5, 400000, ExpD, expl), 1e-15);
  EXPECT_LT(WorstRelative(1e-9, 707.0, 400000, exp_negative, [](long double x) { return expl(-x); }), 1e-15);
  EXPECT_LT(WorstRelative(1e-300, 1e300, 400000, LogD, logl), 1e-15);
  EXPECT_LT(WorstRelative(0.9, 1.1, 400000, LogD, logl), 1e-15);
  EXPECT_LT(WorstRelative(1e-9, 1.07e9, 400000, SinD, sinl), 1e-15);
  EXPECT_LT(WorstRelative(1e-9, 1.07e9, 400000, CosD, cosl), 1e-15);
}

TEST(Math, AnglesNearMultiplesOfPiKeepTheirRelativeError) {
  SetFloatMode();
  for (int64_t n = 1; n < 300'000'000; n = n * 5 / 4 + 1) {
    const double x = static_cast<double>(n * 3.14159265358979323846264L);
    EXPECT_NEAR(SinD(x) / static_cast<double>(sinl(x)), 1.0, 1e-14) << n;
    EXPECT_NEAR(SinD(-x) / static_cast<double>(sinl(-x)), 1.0, 1e-14) << n;
    EXPECT_NEAR(CosD(x + 0.5) / static_cast<double>(cosl(x + 0.5)), 1.0, 1e-14) << n;
  }
}

TEST(Math, Bf16RoundsToNearestEven) {
  EXPECT_EQ(Bf16FromFloat(1.0f), 0x3f80);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x807fffffu)), 0x8000);  // denormal
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0xffffffffu)), 0xffff);
}

}  // namespace
}  // namespace sixfold
