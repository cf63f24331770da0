#include "moe/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace sixfold {
namespace {

using ::testing::ElementsAre;

struct Slots {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Slots Choose(const GateConfig& config, const std::vector<float>& logits) {
  Slots s{std::vector<int32_t>(config.top_k), std::vector<float>(config.top_k)};
  ChooseExperts(config, logits, s.experts.data(), s.weights.data());
  return s;
}

TEST(Gate, TakesTheLargestInDescendingOrderWithTheirProbabilities) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.0f};
  const Slots s = Choose({.experts = 4, .top_k = 2}, logits);
  EXPECT_THAT(s.experts, ElementsAre(1, 3));
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  EXPECT_NEAR(s.weights[0], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(s.weights[1], std::exp(1.0) / sum, 1e-6);
}

TEST(Gate, RenormalisedWeightsSumToOne) {
  const Slots s = Choose({.experts = 4, .top_k = 3, .renormalize = true}, {0.5f, 2.0f, -1.0f, 1.0f});
  EXPECT_NEAR(s.weights[0] + s.weights[1] + s.weights[2], 1.0, 1e-6);
}

TEST(Gate, LowestIndexWinsTiesAndNanIsLast) {
  EXPECT_THAT(Choose({.experts = 5, .top_k = 3}, {1, 2, 2, 1, 2}).experts, ElementsAre(1, 2, 4));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Slots s = Choose({.experts = 3, .top_k = 2}, {nan, -5, -6});
  EXPECT_THAT(s.experts, ElementsAre(1, 2));
  EXPECT_FALSE(std::isnan(s.weights[0]));
}

TEST(Gate, AllExpertsAndForcedExpertsGetTheSameWeights) {
  const std::vector<float> logits = {0.1f, 0.4f, 0.2f};
  const GateConfig config{.experts = 3, .top_k = 3, .renormalize = true};
  const Slots s = Choose(config, logits);
  EXPECT_THAT(s.experts, ElementsAre(1, 2, 0));
  std::vector<float> forced(3);
  WeighExperts(config, logits, s.experts.data(), forced.data());
  EXPECT_EQ(forced, s.weights);
}

}  // namespace
}  // namespace sixfold
