#include "kernels/math.h"

#include <cmath>
#include <limits>

#include "kernels/ops.h"

namespace sixfold {

namespace {

// ln 2 as a part of 42 bits, whose product with an exponent is exact, and the rest.
constexpr double kLn2High = 0x1.62e42fefa3800p-1;
constexpr double kLn2Low = 0x1.ef35793c76730p-45;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// pi / 2 in parts of 23 bits: a product with an integer below 2^30 is exact.
constexpr double kHalfPi[] = {0x1.921fb4p+0,  0x1.4442d0p-24, 0x1.846988p-48,
                              0x1.8cc514p-72, 0x1.80dc1cp-95, 0x1.a25204p-120};

// Rounds to the nearest integer, ties to even, without the library's choice of instruction. |x| < 2^51.
inline double RoundToInteger(double x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  return (x + kMagic) - kMagic;
}

inline double PowerOfTwo(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }  // normal n

// a + b = sum + error exactly (Knuth).
inline double TwoSum(double a, double b, double* error) {
  const double sum = a + b;
  const double rest = sum - a;
  *error = (a - (sum - rest)) + (b - rest);
  return sum;
}

struct Reduced {
  double high = 0, low = 0;  // x - quadrant * pi / 2, in [-pi/4, pi/4]
  int quadrant = 0;          // mod 4
};

Reduced ReduceAngle(double x) {
  const double n = RoundToInteger(x * kTwoOverPi);
  Reduced r{x, 0, static_cast<int>(static_cast<int64_t>(n) & 3)};
  for (const double part : kHalfPi) {
    double error = 0;
    r.high = TwoSum(r.high, -(n * part), &error);
    r.low += error;
    r.high = TwoSum(r.high, r.low, &r.low);
  }
  return r;
}

// Taylor series on |r| <= pi/4; the first term left out is below 1e-19. The low part enters to first order.
double SinKernel(const Reduced& r) {
  const double z = r.high * r.high;
  double p = 1.0 / 355687428096000.0;
  p = std::fma(p, z, -1.0 / 1307674368000.0);
  p = std::fma(p, z, 1.0 / 6227020800.0);
  p = std::fma(p, z, -1.0 / 39916800.0);
  p = std::fma(p, z, 1.0 / 362880.0);
  p = std::fma(p, z, -1.0 / 5040.0);
  p = std::fma(p, z, 1.0 / 120.0);
  p = std::fma(p, z, -1.0 / 6.0);
  const double tail = std::fma(r.high * z, p, std::fma(-0.5 * z, r.low, r.low));
  return r.high + tail;
}

double CosKernel(const Reduced& r) {
  const double z = r.high * r.high;
  double p = -1.0 / 6402373705728000.0;
  p = std::fma(p, z, 1.0 / 20922789888000.0);
  p = std::fma(p, z, -1.0 / 87178291200.0);
  p = std::fma(p, z, 1.0 / 479001600.0);
  p = std::fma(p, z, -1.0 / 3628800.0);
  p = std::fma(p, z, 1.0 / 40320.0);
  p = std::fma(p, z, -1.0 / 720.0);
  p = std::fma(p, z, 1.0 / 24.0);
  const double tail = std::fma(z * z, p, -(r.high * r.low));
  return 1.0 + std::fma(-0.5, z, tail);
}

}  // namespace

float ExpF(float x) {
  if (x != x) return x;
  if (x < kExpLow) return 0.0f;
  if (x > kExpHigh) return std::numeric_limits<float>::infinity();
  const float t = std::fma(x, kExpLog2E, kExpMagic);
  const float n = t - kExpMagic;
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float p = std::fma(kExpQ[4], r, kExpQ[3]);
  p = std::fma(p, r, kExpQ[2]);
  p = std::fma(p, r, kExpQ[1]);
  p = std::fma(p, r, kExpQ[0]);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // The low bits of t are n, so the shift leaves n in the exponent field; within the bounds no result leaves the
  // normal numbers.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(t) << 23));
}

float LogF(float x) { return static_cast<float>(LogD(static_cast<double>(x))); }

float SiluF(float x) { return x / (1.0f + ExpF(-x)); }

double ExpD(double x) {
  if (x != x) return x;
  if (x < -708.0) return 0.0;
  if (x > 709.7) return std::numeric_limits<double>::infinity();
  const double n = RoundToInteger(x * kLog2E);
  double r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  // Taylor to r^13 / 13!; the next term is below 5e-18.
  double p = 1.0 / 6227020800.0;
  double factorial = 479001600.0;  // 12!
  for (int k = 12; k >= 1; --k) {
    p = std::fma(p, r, 1.0 / factorial);
    factorial /= k;
  }
  p = std::fma(p, r, 1.0);
  const int exponent = static_cast<int>(n);  // up to 1024: scaled in two steps
  return p * PowerOfTwo(exponent / 2) * PowerOfTwo(exponent - exponent / 2);
}

double LogD(double x) {
  if (x != x) return x;
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x < std::numeric_limits<double>::min()) return -std::numeric_limits<double>::infinity();  // denormals are zero
  if (x > std::numeric_limits<double>::max()) return x;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt 2
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716; the first term left out is below 1e-19.
  const double f = m - 1.0;
  const double s = f / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 23.0;
  for (int k = 21; k >= 3; k -= 2) p = std::fma(p, z, 1.0 / k);
  const double log_m = std::fma(2.0 * s * z, p, 2.0 * s);
  return std::fma(exponent, kLn2High, std::fma(exponent, kLn2Low, log_m));
}

double SinD(double x) {
  const Reduced r = ReduceAngle(x);
  const double value = r.quadrant & 1 ? CosKernel(r) : SinKernel(r);
  return r.quadrant & 2 ? -value : value;
}

double CosD(double x) {
  const Reduced r = ReduceAngle(x);
  const double value = r.quadrant & 1 ? SinKernel(r) : CosKernel(r);
  return (r.quadrant == 1 || r.quadrant == 2) ? -value : value;
}

}  // namespace sixfold
