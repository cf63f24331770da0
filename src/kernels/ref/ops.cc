// Plain loops: the oracle of every other table, and the scalar ISA.
#include "kernels/ops.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math.h"
#include "kernels/ops_table.h"
#include "kernels/ref/attention.h"

namespace sixfold {
namespace {

// ((0+1)+(2+3)) over the four chains of 16 lanes, then halves onto halves.
float SumOf64Lanes(const float* lane) {
  float v[16];
  for (int j = 0; j < 16; ++j) v[j] = (lane[j] + lane[16 + j]) + (lane[32 + j] + lane[48 + j]);
  for (int width = 8; width >= 1; width /= 2)
    for (int j = 0; j < width; ++j) v[j] += v[j + width];
  return v[0];
}

float SumSquares(const float* x, int64_t n) {
  float lane[64] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % 64] = std::fma(x[i], x[i], lane[i % 64]);
  return SumOf64Lanes(lane);
}

void ScaleByWeight(const float* x, int64_t n, float factor, const float* weight, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * factor) * weight[i];
}

void Rotate(float* x, int64_t half, const float* cos, const float* sin) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = SiluF(gate[i]) * up[i];
}

void ClampedSwiGlu(const float* gate, const float* up, int64_t n, float alpha, float limit, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    out[i] = (u + 1.0f) * (g / (1.0f + ExpF(-(g * alpha))));
  }
}

void Add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

// On the bits: a compiler may turn comparisons into minss and maxss, which make zeros of denormals.
void Clamp(float* x, int64_t n, float limit) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > std::bit_cast<uint32_t>(limit) && magnitude <= 0x7f800000u)
      x[i] = std::bit_cast<float>((bits & 0x80000000u) | std::bit_cast<uint32_t>(limit));
  }
}

void AddScaled(float* x, float factor, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = std::fma(factor, y[i], x[i]);
}

void RoundRowToBf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = RoundToBf16(x[i]);
}

void ToBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16FromFloat(x[i]);
}

float Max(const float* x, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

float SumExp(const float* x, int64_t n, float max) {
  float lane[64] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % 64] += ExpF(x[i] - max);
  return SumOf64Lanes(lane);
}

void ExpScaled(const float* x, int64_t n, float max, float factor, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ExpF((x[i] - max) * factor);
}

int64_t Find(const float* x, int64_t n, float value) {
  int64_t i = 0;
  while (i < n && x[i] != value) ++i;
  return i;
}

}  // namespace

const OpsTable& ScalarOps() {
  static constexpr OpsTable kTable = {
      .sum_squares = SumSquares,
      .scale_by_weight = ScaleByWeight,
      .rotate = Rotate,
      .silu_mul = SiluMul,
      .clamped_swiglu = ClampedSwiGlu,
      .add = Add,
      .add_scaled = AddScaled,
      .clamp = Clamp,
      .round_bf16 = RoundRowToBf16,
      .to_bf16 = ToBf16,
      .max = Max,
      .sum_exp = SumExp,
      .exp_scaled = ExpScaled,
      .find = Find,
      .attention_scratch = RefAttentionScratch,
      .attend = RefAttend,
      .merge = RefMergeNodes,
      .merge_partials = RefMergePartials,
  };
  return kTable;
}

}  // namespace sixfold
