// Rounding to bf16, and constants of the exponential that its scalar and vector forms share (math.cc, x86/). The public
// functions themselves are declared in ops.h.
#pragma once

#include <bit>
#include <cstdint>

namespace sixfold {

inline float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even. Denormals become zero of their sign (also without SetFloatMode), NaN stays NaN.
inline uint16_t Bf16FromFloat(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7f800000u) == 0) return static_cast<uint16_t>((u & 0x80000000u) >> 16);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float RoundToBf16(float x) { return FloatFromBf16(Bf16FromFloat(x)); }

// ExpF: n = round(x log2 e), r = x - n ln 2, exp(x) = 2^n (1 + r (1 + r q(r))). q interpolates (e^r - 1 - r) / r^2 at
// the Chebyshev nodes of |r| <= 0.3466; the polynomial alone is off by 1.1e-8 at most. Adding kExpMagic rounds to an
// integer, which then stands in the low bits of the sum. The order of operations is the contract; see ExpF in math.cc.
inline constexpr float kExpLow = -87.3f;
inline constexpr float kExpHigh = 88.7f;
inline constexpr float kExpLog2E = 0x1.715476p+0f;
inline constexpr float kExpMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr float kExpLn2High = 0x1.62e430p-1f;
inline constexpr float kExpLn2Low = -0x1.05c610p-29f;
inline constexpr float kExpQ[5] = {0.5f, 0x1.5554dcp-3f, 0x1.55551ap-5f, 0x1.120b6cp-7f, 0x1.6d1106p-10f};

}  // namespace sixfold
