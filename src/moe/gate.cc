#include "moe/gate.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/ops.h"

namespace sixfold {

namespace {

float Comparable(float logit) { return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit; }

// True when expert a stands before b.
bool Before(std::span<const float> logits, int32_t a, int32_t b) {
  const float la = Comparable(logits[a]);
  const float lb = Comparable(logits[b]);
  return la > lb || (la == lb && a < b);
}

}  // namespace

void WeighExperts(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights) {
  float max = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) max = std::fmax(max, logit);
  float sum = 0.0f;
  for (const float logit : logits) sum += ExpF(Comparable(logit) - max);
  float chosen = 0.0f;
  for (int s = 0; s < config.top_k; ++s) {
    SF_CHECK_GE(experts[s], 0);
    SF_CHECK_LT(experts[s], config.experts);
    weights[s] = ExpF(Comparable(logits[experts[s]]) - max) / sum;
    chosen += weights[s];
  }
  if (!config.renormalize) return;
  for (int s = 0; s < config.top_k; ++s) weights[s] /= chosen;
}

void ChooseExperts(const GateConfig& config, std::span<const float> logits, int32_t* experts, float* weights) {
  SF_CHECK_EQ(static_cast<int>(logits.size()), config.experts);
  SF_CHECK_LE(config.top_k, config.experts);
  // Insertion into a short sorted list: top_k is at most a few dozen.
  int filled = 0;
  for (int32_t e = 0; e < config.experts; ++e) {
    int at = filled;
    while (at > 0 && Before(logits, e, experts[at - 1])) --at;
    if (at == config.top_k) continue;
    if (filled < config.top_k) ++filled;
    for (int i = filled - 1; i > at; --i) experts[i] = experts[i - 1];
    experts[at] = e;
  }
  WeighExperts(config, logits, experts, weights);
}

}  // namespace sixfold
