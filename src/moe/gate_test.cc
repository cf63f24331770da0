#include "moe/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace sixfold {
namespace {

using ::testing::ElementsAre;

struct Slots {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Slots Choose(const GateConfig& config, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  Slots s{std::vector<int32_t>(config.top_k), std::vector<float>(config.top_k)};
  ChooseExperts(config, logits, bias, s.experts.data(), s.weights.data());
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

TEST(Gate, SoftmaxOfChosenDoesNotSeeTheOthers) {
  const GateConfig config{.experts = 4, .top_k = 2, .score = GateScore::kChosenSoftmax};
  const Slots s = Choose(config, {0.5f, 2.0f, -1.0f, 1.0f});
  EXPECT_THAT(s.experts, ElementsAre(1, 3));
  EXPECT_NEAR(s.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_EQ(s.weights, Choose(config, {0.9f, 2.0f, -90.0f, 1.0f}).weights);
  // Given slots: in any order, the worst experts too.
  float weights[2];
  const int32_t given[] = {2, 0};
  WeighExperts(config, std::vector<float>{0.5f, 200.0f, -1.0f, 1.0f}, given, weights);
  EXPECT_NEAR(weights[1], 1 / (1 + std::exp(-1.5)), 1e-6);
  EXPECT_NEAR(weights[0] + weights[1], 1.0, 1e-6);
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


constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The rules as sentences, in double, with sorts of everything: masks stand where the gate has lists.
Slots Plain(const GateConfig& c, const std::vector<float>& logits, const std::vector<float>& bias) {
  const double lowest = -std::numeric_limits<double>::infinity();
  std::vector<double> score(c.experts), choice(c.experts);
  double sum = 0;
  for (int e = 0; e < c.experts; ++e) {
    const double x = std::isnan(logits[e]) ? lowest : double{logits[e]};
    score[e] = c.score == GateScore::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
    sum += std::exp(x);
  }
  for (int e = 0; e < c.experts; ++e) {
    if (c.score == GateScore::kSoftmax) score[e] /= sum;
    choice[e] = score[e] + (bias.empty() ? 0.0 : double{bias[e]});
    if (std::isnan(logits[e]) || std::isnan(choice[e])) choice[e] = lowest;
  }
  const int size = c.experts / c.groups;
  std::vector<double> worth;
  for (int g = 0; g < c.groups; ++g) {
    std::vector<double> of(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(of.rbegin(), of.rend());
    worth.push_back(c.group_score == GroupScore::kBestTwo && size > 1 ? of[0] + of[1] : of[0]);
  }
  const auto descending = [](const std::vector<double>& by) {
    std::vector<int> order(by.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return by[a] > by[b]; });
    return order;
  };
  const std::vector<int> groups = descending(worth);
  std::vector<bool> open(c.experts, false);
  for (int i = 0; i < c.groups_taken; ++i) std::fill_n(open.begin() + groups[i] * size, size, true);
  Slots out;
  double chosen = 0;
  for (const int e : descending(choice)) {
    if (!open[e] || static_cast<int>(out.experts.size()) == c.top_k) continue;
    out.experts.push_back(e);
    chosen += score[e];
  }
  for (const int32_t e : out.experts) {
    out.weights.push_back(static_cast<float>(score[e] / (c.renormalize ? chosen + 1e-20 : 1.0) * c.scale));
  }
  return out;
}

TEST(Gate, TheBiasChoosesAndNeverWeighs) {
  const GateConfig config{.experts = 4, .top_k = 2, .score = GateScore::kSigmoid, .scale = 2.5f};
  const Slots s = Choose(config, {0.0f, 1.0f, -1.0f, 0.5f}, {0.9f, -0.6f, 0.8f, -0.7f});
  EXPECT_THAT(s.experts, ElementsAre(0, 2));
  EXPECT_NEAR(s.weights[0], 2.5 * 0.5, 1e-6);
  EXPECT_NEAR(s.weights[1], 2.5 / (1 + std::exp(1.0)), 1e-6);
}

TEST(Gate, ExpertsOutsideTheGroupsLoseEvenToNegativeScores) {
  // Group 0 has the best two; its members' biased scores are below zero, what a mask of zeros would have put last.
  const GateConfig config{.experts = 6, .top_k = 2, .score = GateScore::kSigmoid, .renormalize = true,
                          .groups = 3, .groups_taken = 1, .group_score = GroupScore::kBestTwo};
  const std::vector<float> bias = {-1.0f, -1.1f, -0.7f, -3.0f, -2.0f, -2.0f};
  const Slots s = Choose(config, {0, 0, 0, 0, 0, 0}, bias);
  EXPECT_THAT(s.experts, ElementsAre(0, 1));
  EXPECT_FLOAT_EQ(s.weights[0], 0.5f);
}

TEST(Gate, AGroupIsWorthItsBestTwoOrItsBest) {
  GateConfig config{.experts = 6, .top_k = 1, .score = GateScore::kSigmoid, .groups = 2, .groups_taken = 1,
                    .group_score = GroupScore::kBestTwo};
  const std::vector<float> logits = {3.0f, -4.0f, -4.0f, 1.0f, 1.5f, 0.0f};
  EXPECT_THAT(Choose(config, logits).experts, ElementsAre(4));
  config.group_score = GroupScore::kBest;
  EXPECT_THAT(Choose(config, logits).experts, ElementsAre(0));
  config.score = GateScore::kSoftmax;
  EXPECT_THAT(Choose(config, logits).experts, ElementsAre(0));
}

TEST(Gate, LowestIndexWinsTiesOfGroupsAndNanComesLast) {
  const GateConfig config{.experts = 8, .top_k = 3, .score = GateScore::kSigmoid, .groups = 4, .groups_taken = 2,
                          .group_score = GroupScore::kBestTwo};
  EXPECT_THAT(Choose(config, {0, 0, 0, 0, 0, 0, 0, 0}).experts, ElementsAre(0, 1, 2));
  const Slots s = Choose(config, {kNan, kNan, -9, kNan, 2, 1, kNan, 5}, {9, 9, 0, 9, 0, 0, 9, 0});
  EXPECT_THAT(s.experts, ElementsAre(4, 5, 0));  // groups without two numbers tie at the bottom
  EXPECT_EQ(s.weights[2], 0.0f);
  EXPECT_THAT(Choose(config, std::vector<float>(8, 1.0f), std::vector<float>(8, kNan)).experts, ElementsAre(0, 1, 2));
}

TEST(Gate, TheScaleAppliesAfterTheNormAndZeroScoresStayFinite) {
  const GateConfig config{.experts = 3, .top_k = 3, .score = GateScore::kSigmoid, .renormalize = true, .scale = 16.0f};
  const Slots s = Choose(config, {1.0f, 2.0f, 3.0f});
  EXPECT_NEAR(s.weights[0] + s.weights[1] + s.weights[2], 16.0, 1e-5);
  EXPECT_THAT(Choose(config, {-200.0f, -200.0f, -200.0f}).weights, ElementsAre(0.0f, 0.0f, 0.0f));
}

TEST(Gate, RandomConfigsEqualThePlainRules) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    GateConfig c{.score = bits() % 2 ? GateScore::kSigmoid : GateScore::kSoftmax, .renormalize = bits() % 2 == 0,
                 .scale = bits() % 2 ? 2.5f : 1.0f};
    c.groups = 1 + static_cast<int>(bits() % 8);
    const int size = 1 + static_cast<int>(bits() % 8);
    c.experts = c.groups * size;
    c.groups_taken = 1 + static_cast<int>(bits() % c.groups);
    c.top_k = 1 + static_cast<int>(bits() % (c.groups_taken * size));
    const bool sigmoid = c.score == GateScore::kSigmoid;
    c.group_score = sigmoid && bits() % 2 ? GroupScore::kBestTwo : GroupScore::kBest;
    // Coarse values tie often, and then in float and double alike.
    std::vector<float> logits(c.experts), bias(sigmoid && bits() % 4 ? c.experts : 0);
    const bool coarse = bits() % 2;
    for (float& x : logits) x = coarse ? static_cast<float>(bits() % 3) : 2 * normal(bits);
    for (float& x : bias) x = coarse ? -2.0f : normal(bits);
    if (round % 5 == 0) logits[bits() % c.experts] = kNan;
    const Slots got = Choose(c, logits, bias), want = Plain(c, logits, bias);
    if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) continue;
    ASSERT_EQ(got.experts, want.experts) << "round " << round;
    for (int s = 0; s < c.top_k; ++s) ASSERT_NEAR(got.weights[s], want.weights[s], 1e-5 * c.scale) << "round " << round;
  }
}

}  // namespace
}  // namespace sixfold
