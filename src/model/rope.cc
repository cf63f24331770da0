#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"

namespace sixfold {

namespace {

constexpr double kTwoPi = 6.283185307179586;

void ScaleLlama3(const RopeConfig& rope, std::vector<float>* inverse) {
  const auto original = static_cast<float>(rope.original_max_position);
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  for (float& f : *inverse) {
    const float wavelength = static_cast<float>(kTwoPi) / f;
    if (wavelength > original / low) {
      f = f / factor;
    } else if (wavelength >= original / high) {
      const float smooth = (original / wavelength - low) / (high - low);
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
  }
}

// Dimension whose wavelength makes `rotations` turns within the original context.
double CorrectionDim(const RopeConfig& rope, int head_dim, double rotations) {
  return head_dim * LogD(static_cast<double>(rope.original_max_position) / (rotations * kTwoPi)) /
         (2.0 * LogD(rope.theta));
}

void ScaleYarn(const RopeConfig& rope, int head_dim, std::vector<float>* inverse) {
  double low = CorrectionDim(rope, head_dim, rope.beta_fast);
  double high = CorrectionDim(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse->size(); ++i) {
    const auto ramp = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    const float kept = 1.0f - ramp;  // the share that stays as trained
    const float f = (*inverse)[i];
    (*inverse)[i] = f / static_cast<float>(rope.factor) * (1.0f - kept) + f * kept;
  }
}

double YarnMagnitude(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * LogD(factor) + 1.0; }

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> inverse(head_dim / 2);
  const double log_theta = LogD(rope.theta);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    inverse[i] = 1.0f / static_cast<float>(ExpD(log_theta * static_cast<double>(exponent)));
  }
  switch (rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear:
      for (float& f : inverse) f /= static_cast<float>(rope.factor);
      break;
    case RopeScaling::kLlama3: ScaleLlama3(rope, &inverse); break;
    case RopeScaling::kYarn: ScaleYarn(rope, head_dim, &inverse); break;
  }
  for (size_t i = 0; i < rope.freq_factors.size() && i < inverse.size(); ++i) inverse[i] /= rope.freq_factors[i];
  return inverse;
}

float RotationMagnitude(const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn) return 1.0f;
  if (rope.attention_factor > 0) return static_cast<float>(rope.attention_factor);
  if (rope.mscale > 0 && rope.mscale_all_dim > 0) {
    return static_cast<float>(YarnMagnitude(rope.factor, rope.mscale) / YarnMagnitude(rope.factor, rope.mscale_all_dim));
  }
  return static_cast<float>(YarnMagnitude(rope.factor, 1.0));
}

float AttentionScale(const ModelConfig& config) {
  if (!config.latent.used()) return 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const RopeConfig& rope = config.rope;
  const bool yarn = rope.scaling == RopeScaling::kYarn && rope.mscale_all_dim > 0;
  const double magnitude = yarn ? YarnMagnitude(rope.factor, rope.mscale_all_dim) : 1.0;
  return static_cast<float>(magnitude * magnitude / std::sqrt(static_cast<double>(config.head_dim)));
}

void FillRotation(std::span<const float> inverse_frequencies, float magnitude, std::span<const int64_t> positions,
                  std::vector<float>* cos, std::vector<float>* sin) {
  const size_t half = inverse_frequencies.size();
  cos->resize(positions.size() * half);
  sin->resize(positions.size() * half);
  for (size_t p = 0; p < positions.size(); ++p) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[p]) * inverse_frequencies[i];
      (*cos)[p * half + i] = static_cast<float>(CosD(angle)) * magnitude;
      (*sin)[p * half + i] = static_cast<float>(SinD(angle)) * magnitude;
    }
  }
}

}  // namespace sixfold
