#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "kernels/ops.h"

namespace sixfold {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr double kGreedyBelow = 1e-5;    // as vLLM: dividing by less leaves one candidate anyway
constexpr int64_t kHeapSelectMax = 512;  // above, a partition of all candidates is faster than a heap of the best

bool IsGreedy(const SamplingParams& p) { return p.temperature < kGreedyBelow; }

bool HasNan(std::span<const float> row) {
  int bad = 0;
  for (const float x : row) bad |= x != x;
  return bad != 0;
}

// Index of the first cumulative weight above u * total; the last positive one if rounding leaves none.
int64_t PickByWeight(std::span<const float> weights, double total, double u) {
  const double target = u * total;
  double sum = 0;
  int64_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last = static_cast<int64_t>(i);
    if (sum > target) break;
  }
  return last;
}

}  // namespace

Sampler::Sampler(int64_t vocab) : vocab_(vocab), adjusted_(vocab), weights_(vocab), counts_(vocab, 0) {
  candidates_.reserve(vocab);
}

Result<SampledToken> Sampler::Sample(const SampleInput& input) {
  SF_CHECK_EQ(static_cast<int64_t>(input.logits.size()), vocab_);
  if (HasNan(input.logits)) return Internal("the model's logits hold NaN");
  const std::span<const float> row = Adjust(input);
  const TokenId best = ArgMax(row);
  if (!std::isfinite(row[best])) return Internal("no token with a finite logit is left to sample");
  SampledToken sampled;
  sampled.token = IsGreedy(input.params) ? best : Draw(row, row[best], input);
  SF_CHECK_GE(sampled.token, 0);
  SF_CHECK_LT(sampled.token, vocab_);
  if (input.params.logprobs >= 0) {
    sampled.logprobs = Logprobs(input.logits, sampled.token, input.params.logprobs);
  }
  return sampled;
}

std::span<const float> Sampler::Adjust(const SampleInput& input) {
  const SamplingParams& p = input.params;
  const bool penalties = p.repetition_penalty != 1.0 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  const bool masked = static_cast<int64_t>(input.answer.size()) < p.min_tokens && !input.end_ids.empty();
  if (!penalties && !masked && p.logit_bias.empty()) return input.logits;
  std::copy(input.logits.begin(), input.logits.end(), adjusted_.begin());
  for (const auto& [token, bias] : p.logit_bias) adjusted_[token] += static_cast<float>(bias);
  if (penalties) ApplyPenalties(input);
  if (masked) {
    for (const TokenId token : input.end_ids) adjusted_[token] = -kInfinity;
  }
  return adjusted_;
}

void Sampler::ApplyPenalties(const SampleInput& input) {
  const auto repetition = static_cast<float>(input.params.repetition_penalty);
  const auto frequency = static_cast<float>(input.params.frequency_penalty);
  const auto presence = static_cast<float>(input.params.presence_penalty);
  // counts_: 0 not seen, else 1 + occurrences in the answer. Each token is adjusted once, when its count is taken back.
  for (const TokenId t : input.prompt) counts_[t] = 1;
  for (const TokenId t : input.answer) counts_[t] = std::max(counts_[t], 1) + 1;
  const auto adjust = [&](TokenId t) {
    if (counts_[t] == 0) return;
    const int32_t occurrences = counts_[t] - 1;
    counts_[t] = 0;
    float l = adjusted_[t];
    if (std::isfinite(l)) {
      // A penalty near either end of fp32 gives the largest number, not an infinity that no token
      // could be drawn from.
      l = std::clamp(l > 0 ? l / repetition : l * repetition, -kLargest, kLargest);
    }
    if (occurrences > 0) {
      l -= frequency * static_cast<float>(occurrences);
      l -= presence;
    }
    adjusted_[t] = l;
  };
  for (const TokenId t : input.prompt) adjust(t);
  for (const TokenId t : input.answer) adjust(t);
}

TokenId Sampler::Draw(std::span<const float> row, float max, const SampleInput& input) {
  const SamplingParams& p = input.params;
  const double u = RandomUniform({.seed = input.seed,
                                  .choice = input.choice,
                                  .position = static_cast<uint32_t>(input.prompt.size() + input.answer.size()),
                                  .purpose = RandomPurpose::kSample});
  const Scale scale{.max = max, .inverse_temperature = 1.0f / static_cast<float>(p.temperature)};
  const bool cut_k = p.top_k > 0 && p.top_k < vocab_;
  if (!cut_k && p.top_p >= 1.0 && p.min_p <= 0) {
    const double total = WeighAll(row, scale);
    return static_cast<TokenId>(PickByWeight(weights_, total, u));
  }
  double total = 0;
  if (cut_k) {
    SelectTop(vocab_, p.top_k, [&](int64_t i) { return row[i]; });
    for (const Candidate& c : candidates_) total += ExpF(scale(c.value));
  } else {
    total = WeighAll(row, scale);
    CollectCandidates(row, p, total);
  }
  KeepPrefix(scale, p, total);
  double kept = 0;
  const std::span<const float> weights(weights_.data(), candidates_.size());
  for (const float w : weights) kept += w;
  return candidates_[PickByWeight(weights, kept, u)].id;
}

double Sampler::WeighAll(std::span<const float> row, const Scale& scale) {
  ExpScaled(row, scale.max, scale.inverse_temperature, weights_);
  double total = 0;
  for (const float w : weights_) total += w;
  return total;
}

template <typename F>
void Sampler::SelectTop(int64_t n, int64_t count, F value) {
  candidates_.clear();
  count = std::min(count, n);
  if (count <= 0) return;
  if (count > kHeapSelectMax) {
    for (int64_t i = 0; i < n; ++i) candidates_.push_back({value(i), static_cast<TokenId>(i)});
    std::nth_element(candidates_.begin(), candidates_.begin() + (count - 1), candidates_.end(), Before);
    candidates_.resize(count);
    std::sort(candidates_.begin(), candidates_.end(), Before);
    return;
  }
  // A heap of the best so far, the worst of them in front. Ids ascend, so an equal value never displaces one.
  for (int64_t i = 0; i < n; ++i) {
    const float v = value(i);
    if (static_cast<int64_t>(candidates_.size()) == count) {
      if (!(v > candidates_.front().value)) continue;
      std::pop_heap(candidates_.begin(), candidates_.end(), Before);
      candidates_.pop_back();
    }
    candidates_.push_back({v, static_cast<TokenId>(i)});
    std::push_heap(candidates_.begin(), candidates_.end(), Before);
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Before);
}

void Sampler::CollectCandidates(std::span<const float> row, const SamplingParams& params, double total) {
  // All tokens below the floor weigh less than (1 - top_p) / 2 of the total together, so top_p ends before them.
  double floor = params.top_p < 1.0 ? 0.5 * (1.0 - params.top_p) * total / static_cast<double>(vocab_) : 0.0;
  floor = std::max(floor, static_cast<double>(static_cast<float>(params.min_p)));  // compared as KeepPrefix does
  candidates_.clear();
  for (int64_t i = 0; i < vocab_; ++i) {
    if (weights_[i] >= floor) candidates_.push_back({row[i], static_cast<TokenId>(i)});
  }
}

void Sampler::KeepPrefix(const Scale& scale, const SamplingParams& params, double total) {
  const auto min_p = static_cast<float>(params.min_p);
  const double enough = params.top_p < 1.0 ? params.top_p * total : std::numeric_limits<double>::infinity();
  size_t ordered = 0, kept = 0;
  double sum = 0;
  for (size_t batch = 64; kept < candidates_.size(); ++kept) {
    if (kept == ordered) {
      // Order the next few; a peaked distribution never pays for sorting its tail.
      const size_t end = std::min(candidates_.size(), ordered + batch);
      if (end < candidates_.size()) {
        std::nth_element(candidates_.begin() + ordered, candidates_.begin() + end, candidates_.end(), Before);
      }
      std::sort(candidates_.begin() + ordered, candidates_.begin() + end, Before);
      ordered = end;
      batch *= 4;
    }
    const float w = ExpF(scale(candidates_[kept].value));
    if (kept > 0 && (sum >= enough || w < min_p))
      break;  // a subnormal top_p counts as 0 here: one stays
    weights_[kept] = w;
    sum += w;
  }
  candidates_.resize(kept);
}

TokenLogprobs Sampler::Logprobs(std::span<const float> logits, TokenId token, int count) {
  const LogSoftmaxStats stats = LogSoftmax(logits);
  const auto logprob = [&](int64_t i) { return logits[i] - stats.max - stats.log_sum; };
  TokenLogprobs out;
  out.logprob = logprob(token);
  SelectTop(vocab_, count, logprob);
  out.top.reserve(candidates_.size());
  for (const Candidate& c : candidates_) out.top.emplace_back(c.id, c.value);
  return out;
}

}  // namespace sixfold
