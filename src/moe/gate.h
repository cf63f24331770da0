// Which experts a token goes to: a pure function from router logits to slots.
#pragma once

#include <cstdint>
#include <span>

namespace sixfold {

struct GateConfig {
  int experts = 0;            // 0: the model has no experts
  int top_k = 0;
  bool renormalize = false;   // divide the chosen probabilities by their sum
};

// Softmax over all experts, then the top_k largest in descending order (the lowest index wins ties). logits [experts];
// experts and weights [top_k] are written: slot s gets expert experts[s] with weights[s]. A NaN logit counts as the
// smallest.
void ChooseExperts(const GateConfig& config, std::span<const float> logits, int32_t* experts, float* weights);

// The same weights for slots that are given instead of chosen (route replay). experts[s] must be in range.
void WeighExperts(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights);

}  // namespace sixfold
