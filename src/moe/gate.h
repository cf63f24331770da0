// Which experts a token goes to: a pure function from router logits to slots.
#pragma once

#include <cstdint>
#include <span>

namespace sixfold {

inline constexpr int kGateGroupsMax = 1024;

// Softmax: p over all experts. Sigmoid: of each logit alone (DeepSeek-V3). ChosenSoftmax: p among the chosen, whatever the
// others' logits (GPT-OSS).
enum class GateScore : uint8_t { kSoftmax, kSigmoid, kChosenSoftmax };

// What a group of experts is worth: its best expert (DeepSeek-V2), or its best two together (DeepSeek-V3).
enum class GroupScore : uint8_t { kBest, kBestTwo };

struct GateConfig {
  int experts = 0;            // 0: the model has no experts
  int top_k = 0;
  GateScore score = GateScore::kSoftmax;
  bool renormalize = false;   // divide the chosen scores by their sum + 1e-20
  float scale = 1.0f;         // what weights are multiplied by in the end
  // Experts stand in `groups` equal groups of neighbours; only those of the best `groups_taken` groups can be chosen. The
  // groups taken hold at least top_k experts.
  int groups = 1, groups_taken = 1;
  GroupScore group_score = GroupScore::kBest;   // kBestTwo: with kSigmoid only
};

// The top_k experts by score + bias, in descending order (the lowest index wins ties, among groups as well). logits
// [experts]; bias [experts], with kSigmoid only, or empty; experts and weights [top_k] are written: slot s gets expert
// experts[s] with weights[s], which the bias does not enter. A NaN, in logits or bias, counts as the smallest.
void ChooseExperts(const GateConfig& config, std::span<const float> logits, std::span<const float> bias, int32_t* experts,
                   float* weights);

// The same weights for slots that are given instead of chosen (route replay). experts[s] must be in range.
void WeighExperts(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights);

}  // namespace sixfold
