// From one row of logits to one token: a pure function of its input, the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/request.h"

namespace sixfold {

struct SampleInput {
  std::span<const float> logits;  // [vocab], as the model gave them
  const SamplingParams& params;   // valid (ValidateSampling)
  std::span<const TokenId> prompt;
  std::span<const TokenId> answer;   // so far; the token to draw stands at position prompt + answer
  std::span<const TokenId> end_ids;  // not sampled while the answer is shorter than min_tokens
  uint64_t seed = 0;
  uint32_t choice = 0;
};

// The order of operations (vLLM's):
//   1. logit bias: l += bias
//   2. repetition penalty r over prompt and answer: l = l > 0 ? l / r : l * r, at most the largest
//   fp32; then over the answer
//      l -= frequency * count, l -= presence
//   3. min_tokens: end_ids get -inf
//   4. temperature 0 (or below 1e-5): the largest l, lowest id on ties. Else weights w = ExpF((l -
//   max l) * (1 / t))
//   5. top_k: the first k by (l descending, id ascending); top_p: of what is left, the shortest
//   prefix of that order
//      with sum w >= top_p * sum; min_p: those with w >= min_p (the largest w is 1)
//   6. the first candidate whose cumulative w exceeds u * sum w, with u = RandomUniform({seed,
//   choice, position,
//      kSample}). Candidates stand in the order of 5, or of ids if no filter of 5 is on: no sort is
//      needed then.
// All of it in fp32, cumulative sums in fp64, in the order given. Log probabilities are of the raw
// logits (before 1).
//
// Holds scratch of a few vocabularies, so that drawing a token allocates nothing but the log
// probabilities that were asked for. Thread rule: one thread at a time.
class Sampler {
 public:
  explicit Sampler(int64_t vocab);

  // kInternal: the logits hold NaN, or no finite one is left to draw.
  Result<SampledToken> Sample(const SampleInput& input);

 private:
  struct Candidate {
    float value = 0;
    TokenId id = 0;
  };
  // Larger value first, lower id on ties.
  static bool Before(const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  }

  std::span<const float> Adjust(const SampleInput& input);
  void ApplyPenalties(const SampleInput& input);
  // The exponent whose ExpF is a candidate's weight.
  struct Scale {
    float max = 0;
    float inverse_temperature = 1;
    float operator()(float logit) const { return (logit - max) * inverse_temperature; }
  };

  TokenId Draw(std::span<const float> row, float max, const SampleInput& input);
  // Leaves the weights of all tokens in weights_; returns their sum.
  double WeighAll(std::span<const float> row, const Scale& scale);
  // Leaves the first `count` of values f(0..n-1), ordered, in candidates_.
  template <typename F>
  void SelectTop(int64_t n, int64_t count, F value);
  // Leaves in candidates_, unordered, all that top_p and min_p can keep of tokens that weigh weights_, total in sum.
  void CollectCandidates(std::span<const float> row, const SamplingParams& params, double total);
  // Orders candidates_ as far as needed and cuts it to the prefix that top_p and min_p keep. Its weights go to
  // weights_.
  void KeepPrefix(const Scale& scale, const SamplingParams& params, double total);
  TokenLogprobs Logprobs(std::span<const float> logits, TokenId token, int count);

  int64_t vocab_;
  std::vector<float> adjusted_;        // [vocab]
  std::vector<float> weights_;         // [vocab]
  std::vector<int32_t> counts_;        // [vocab] zero between calls
  std::vector<Candidate> candidates_;  // capacity vocab
};

}  // namespace sixfold
