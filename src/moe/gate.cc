#include "moe/gate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/ops.h"

namespace sixfold {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float Comparable(float x) { return std::isnan(x) ? kLowest : x; }

float Sigmoid(float x) { return 1.0f / (1.0f + ExpF(-Comparable(x))); }

// What experts are compared by. A softmax keeps the order of its logits, and logits have fewer ties: they stand for it.
class Choice {
 public:
  Choice(const GateConfig& config, std::span<const float> logits, std::span<const float> bias)
      : config_(config), logits_(logits), bias_(bias) {}

  float Of(int32_t e) const {
    if (config_.score != GateScore::kSigmoid || std::isnan(logits_[e])) return Comparable(logits_[e]);
    return Comparable(Sigmoid(logits_[e]) + (bias_.empty() ? 0.0f : bias_[e]));
  }

 private:
  const GateConfig& config_;
  std::span<const float> logits_, bias_;
};

// Inserts `item` of worth `value` into a list in descending order, which keeps the best `capacity`. Called in ascending
// order of items: an equal one stays behind.
struct BestList {
  int capacity = 0;
  int32_t* items = nullptr;  // [capacity]
  float* values = nullptr;   // [capacity]
  int filled = 0;

  void Offer(int32_t item, float value) {
    int at = filled;
    while (at > 0 && value > values[at - 1]) --at;
    if (at == capacity) return;
    if (filled < capacity) ++filled;
    for (int i = filled - 1; i > at; --i) {
      items[i] = items[i - 1];
      values[i] = values[i - 1];
    }
    items[at] = item;
    values[at] = value;
  }
};

float ScoreOfGroup(const GateConfig& config, const Choice& choice, int32_t begin, int32_t end) {
  float best = kLowest, second = kLowest;
  for (int32_t e = begin; e < end; ++e) {
    const float value = choice.Of(e);
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return config.group_score == GroupScore::kBest || end - begin == 1 ? best : Comparable(best + second);
}

// Groups whose experts can be chosen, ascending; returns how many.
int TakeGroups(const GateConfig& config, const Choice& choice, std::span<int32_t, kGateGroupsMax> taken) {
  std::array<float, kGateGroupsMax> values;
  BestList best{.capacity = config.groups_taken, .items = taken.data(), .values = values.data()};
  const int size = config.experts / config.groups;
  for (int32_t g = 0; g < config.groups; ++g) best.Offer(g, ScoreOfGroup(config, choice, g * size, (g + 1) * size));
  std::sort(taken.begin(), taken.begin() + best.filled);
  return best.filled;
}

// weights[s] = softmax(logits)[experts[s]].
void SoftmaxOfChosen(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights) {
  float max = kLowest;
  for (const float logit : logits) max = std::fmax(max, logit);
  float sum = 0.0f;
  for (const float logit : logits) sum += ExpF(Comparable(logit) - max);
  for (int s = 0; s < config.top_k; ++s) weights[s] = ExpF(Comparable(logits[experts[s]]) - max) / sum;
}

// weights = softmax of the chosen logits alone; sums run in slot order.
void SoftmaxAmongChosen(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights) {
  float max = kLowest;
  for (int s = 0; s < config.top_k; ++s) max = std::fmax(max, logits[experts[s]]);
  float sum = 0.0f;
  for (int s = 0; s < config.top_k; ++s) {
    weights[s] = ExpF(Comparable(logits[experts[s]]) - max);
    sum += weights[s];
  }
  for (int s = 0; s < config.top_k; ++s) weights[s] /= sum;
}

}  // namespace

void WeighExperts(const GateConfig& config, std::span<const float> logits, const int32_t* experts, float* weights) {
  for (int s = 0; s < config.top_k; ++s) {
    SF_CHECK_GE(experts[s], 0);
    SF_CHECK_LT(experts[s], config.experts);
  }
  if (config.score == GateScore::kSoftmax) {
    SoftmaxOfChosen(config, logits, experts, weights);
  } else if (config.score == GateScore::kChosenSoftmax) {
    SoftmaxAmongChosen(config, logits, experts, weights);
  } else {
    for (int s = 0; s < config.top_k; ++s) weights[s] = Sigmoid(logits[experts[s]]);
  }
  if (config.renormalize) {
    float chosen = 0.0f;
    for (int s = 0; s < config.top_k; ++s) chosen += weights[s];
    for (int s = 0; s < config.top_k; ++s) weights[s] /= chosen + 1e-20f;
  }
  if (config.scale == 1.0f) return;
  for (int s = 0; s < config.top_k; ++s) weights[s] *= config.scale;
}

void ChooseExperts(const GateConfig& config, std::span<const float> logits, std::span<const float> bias, int32_t* experts,
                   float* weights) {
  SF_CHECK_EQ(static_cast<int>(logits.size()), config.experts);
  SF_CHECK(bias.empty() || bias.size() == logits.size());
  SF_CHECK(config.score == GateScore::kSigmoid || (bias.empty() && config.group_score == GroupScore::kBest));
  SF_CHECK_LE(config.groups, kGateGroupsMax);
  SF_CHECK_EQ(config.experts % config.groups, 0);
  const int size = config.experts / config.groups;
  SF_CHECK_LE(config.top_k, config.groups_taken * size);
  const Choice choice(config, logits, bias);
  std::array<int32_t, kGateGroupsMax> taken;
  taken[0] = 0;
  const int groups = config.groups == 1 ? 1 : TakeGroups(config, choice, taken);
  // Insertion into a short sorted list: top_k is at most a few dozen. Its values lie where the weights will.
  BestList best{.capacity = config.top_k, .items = experts, .values = weights};
  for (int g = 0; g < groups; ++g) {
    for (int32_t e = taken[g] * size; e < (taken[g] + 1) * size; ++e) best.Offer(e, choice.Of(e));
  }
  WeighExperts(config, logits, experts, weights);
}

}  // namespace sixfold
