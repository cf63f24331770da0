#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "base/random.h"
#include "kernels/ops.h"

namespace sixfold {
namespace {

float Uniform(uint64_t seed, uint32_t position) {
  return static_cast<float>(RandomUniform({.seed = seed, .position = position, .purpose = RandomPurpose::kTest}));
}

std::vector<float> RandomLogits(int64_t vocab, uint64_t seed, float spread) {
  std::vector<float> logits(vocab);
  for (int64_t i = 0; i < vocab; ++i) logits[i] = (Uniform(seed, static_cast<uint32_t>(i)) * 2 - 1) * spread;
  return logits;
}

// What no client may bring about: infinities, and an empty set to draw from. In the engine's float
// mode, where subnormal numbers are zero.
TEST(Sampler, NumbersAtTheEdgesOfFp32LeaveATokenToDraw) {
  SetFloatMode();
  constexpr int64_t kVocab = 50;
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5}, answer = {6, 7, 1};
  std::vector<TokenId> all(kVocab);
  std::iota(all.begin(), all.end(), 0);
  Sampler sampler(kVocab);
  for (const double repetition : {1.0, 1.2e-38, 1e-20, 3.4e38}) {
    for (const double top_p : {1.0, 0.5, 1e-310, 5e-324}) {
      for (const double min_p : {0.0, 1e-320, 1.0}) {
        for (const double temperature : {0.0, 1e-40, 1e-5, 2.0}) {
          for (const bool whole_vocabulary : {false, true}) {
            SamplingParams p{.temperature = temperature,
                             .top_p = top_p,
                             .min_p = min_p,
                             .repetition_penalty = repetition};
            p.logit_bias = {{3, 100}, {4, -100}};
            for (const float sign : {-1.0f, 1.0f}) {  // all logits negative, or all positive
              std::vector<float> logits = RandomLogits(kVocab, 3, 9);
              for (float& l : logits) l = sign * (std::abs(l) + 0.1f);
              const auto sampled = sampler.Sample({.logits = logits,
                                                   .params = p,
                                                   .prompt = whole_vocabulary ? all : prompt,
                                                   .answer = answer,
                                                   .end_ids = {},
                                                   .seed = 5});
              ASSERT_TRUE(sampled.ok())
                  << sampled.status().ToString() << repetition << " " << top_p << " " << min_p;
              ASSERT_GE(sampled->token, 0);
              ASSERT_LT(sampled->token, kVocab);
            }
          }
        }
      }
    }
  }
  const std::vector<float> logits = RandomLogits(kVocab, 4, 9);
  const auto best =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const SamplingParams p{.temperature = 1, .top_p = 1e-310};
  EXPECT_EQ(sampler
                .Sample({.logits = logits,
                         .params = p,
                         .prompt = prompt,
                         .answer = {},
                         .end_ids = {},
                         .seed = 1})
                ->token,
            best);
}

// The definition in the header, with a full sort and no shortcut.
TokenId SampleByDefinition(const SampleInput& in) {
  const SamplingParams& p = in.params;
  std::vector<float> l(in.logits.begin(), in.logits.end());
  for (const auto& [t, bias] : p.logit_bias) l[t] += static_cast<float>(bias);
  for (TokenId t = 0; t < static_cast<TokenId>(l.size()); ++t) {
    const auto count = std::count(in.answer.begin(), in.answer.end(), t);
    const bool seen = count > 0 || std::find(in.prompt.begin(), in.prompt.end(), t) != in.prompt.end();
    const auto r = static_cast<float>(p.repetition_penalty);
    if (seen) l[t] = l[t] > 0 ? l[t] / r : l[t] * r;
    if (count > 0) {
      l[t] -= static_cast<float>(p.frequency_penalty) * static_cast<float>(count);
      l[t] -= static_cast<float>(p.presence_penalty);
    }
  }
  if (static_cast<int64_t>(in.answer.size()) < p.min_tokens) {
    for (const TokenId t : in.end_ids) l[t] = -std::numeric_limits<float>::infinity();
  }
  const float max = *std::max_element(l.begin(), l.end());
  if (p.temperature == 0) return static_cast<TokenId>(std::max_element(l.begin(), l.end()) - l.begin());
  const bool cut_k = p.top_k > 0 && p.top_k < static_cast<int64_t>(l.size());
  std::vector<TokenId> order(l.size());
  std::iota(order.begin(), order.end(), 0);
  const auto weight = [&](TokenId t) { return ExpF((l[t] - max) * (1.0f / static_cast<float>(p.temperature))); };
  double total = 0;
  for (const TokenId t : order) total += weight(t);
  if (cut_k || p.top_p < 1 || p.min_p > 0) {
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return l[a] > l[b]; });
    if (cut_k) {
      order.resize(p.top_k);
      total = 0;
      for (const TokenId t : order) total += weight(t);
    }
    std::vector<TokenId> kept;
    double before = 0;
    for (const TokenId t : order) {
      if (p.top_p < 1 && before >= p.top_p * total) break;
      if (weight(t) >= static_cast<float>(p.min_p)) kept.push_back(t);
      before += weight(t);
    }
    order = kept;
  }
  total = 0;
  for (const TokenId t : order) total += weight(t);
  const double u = RandomUniform(
      {.seed = in.seed, .choice = in.choice, .position = static_cast<uint32_t>(in.prompt.size() + in.answer.size())});
  double sum = 0;
  for (const TokenId t : order) {
    sum += weight(t);
    if (sum > u * total) return t;
  }
  return order.back();
}

SamplingParams RandomParams(uint64_t seed, int64_t vocab) {
  uint32_t next = 1000000;
  const auto u = [&] { return Uniform(seed, next++); };
  const auto maybe = [&](double on, double off) { return u() < 0.5f ? on : off; };
  SamplingParams p;
  p.temperature = u() < 0.1f ? 0.0 : 0.05 + 1.9 * u();
  p.top_k = static_cast<int64_t>(maybe(1 + u() * static_cast<float>(u() < 0.5f ? 50 : vocab), 0));
  p.top_p = maybe(0.01 + 0.98 * u(), 1.0);
  p.min_p = maybe(u() * u() * u(), 0.0);
  p.repetition_penalty = maybe(0.5 + u(), 1.0);
  p.frequency_penalty = maybe(u() * 2 - 1, 0.0);
  p.presence_penalty = maybe(u() * 2 - 1, 0.0);
  p.min_tokens = static_cast<int64_t>(maybe(10, 0));
  if (u() < 0.3f) p.logit_bias = {{static_cast<TokenId>(u() * static_cast<float>(vocab)), 5.0}, {1, -100.0}};
  return p;
}

TEST(Sampler, ShortcutsGiveTheTokenOfTheDefinition) {
  for (const int64_t vocab : {3, 64, 1000, 5000}) {
    Sampler sampler(vocab);
    for (uint64_t seed = 0; seed < 300; ++seed) {
      SCOPED_TRACE(testing::Message() << "vocab " << vocab << " seed " << seed);
      std::vector<float> logits = RandomLogits(vocab, seed, seed % 3 == 0 ? 20.0f : 3.0f);
      if (seed % 5 == 0) {
        for (float& l : logits) l = std::round(l);  // many ties
      }
      const SamplingParams params = RandomParams(seed, vocab);
      std::vector<TokenId> history(seed % 40 + 1);
      for (size_t i = 0; i < history.size(); ++i) {
        history[i] = static_cast<TokenId>(Uniform(seed + 7, static_cast<uint32_t>(i)) * static_cast<float>(vocab));
      }
      const size_t prompt = 1 + seed % history.size();
      const std::vector<TokenId> end_ids = {0};
      const SampleInput input{.logits = logits,
                              .params = params,
                              .prompt = std::span(history).first(prompt),
                              .answer = std::span(history).subspan(prompt),
                              .end_ids = end_ids,
                              .seed = seed,
                              .choice = static_cast<uint32_t>(seed % 4)};
      const auto sampled = sampler.Sample(input);
      ASSERT_TRUE(sampled.ok()) << sampled.status().message();
      EXPECT_EQ(sampled->token, SampleByDefinition(input));
    }
  }
}

// testdata/sampler_vectors.txt: cases of testdata/sampler_vectors.py, an independent numpy form.
struct Vector {
  std::string name;
  std::vector<float> logits;
  std::vector<TokenId> prompt, answer, end_ids, tokens;  // tokens: drawn with seeds 0, 1, ...
  SamplingParams params;
  uint32_t choice = 0;
  float logprob = 0;  // of tokens[0]
  std::vector<std::pair<TokenId, float>> top;
};

template <typename T>
std::vector<T> ReadList(std::istringstream& words) {
  std::vector<T> out;
  for (T value{}; words >> value;) out.push_back(value);
  return out;
}

std::vector<Vector> ReadVectors(const char* path) {
  std::ifstream in(path);
  std::vector<Vector> out;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    if (!(words >> key) || key[0] == '#') continue;
    if (key == "case") {
      words >> out.emplace_back().name;
      continue;
    }
    Vector& v = out.back();
    SamplingParams& p = v.params;
    if (key == "logits")
      v.logits = ReadList<float>(words);
    else if (key == "prompt")
      v.prompt = ReadList<TokenId>(words);
    else if (key == "answer")
      v.answer = ReadList<TokenId>(words);
    else if (key == "end_ids")
      v.end_ids = ReadList<TokenId>(words);
    else if (key == "tokens")
      v.tokens = ReadList<TokenId>(words);
    else if (key == "choice")
      words >> v.choice;
    else if (key == "temperature")
      words >> p.temperature;
    else if (key == "top_k")
      words >> p.top_k;
    else if (key == "top_p")
      words >> p.top_p;
    else if (key == "min_p")
      words >> p.min_p;
    else if (key == "repetition_penalty")
      words >> p.repetition_penalty;
    else if (key == "presence_penalty")
      words >> p.presence_penalty;
    else if (key == "frequency_penalty")
      words >> p.frequency_penalty;
    else if (key == "min_tokens")
      words >> p.min_tokens;
    else if (key == "logit_bias") {
      for (auto [t, bias] = std::pair<TokenId, double>{}; words >> t >> bias;) p.logit_bias[t] = bias;
    } else if (key == "logprob") {
      words >> v.logprob;
    } else if (key == "top") {
      for (auto [t, lp] = std::pair<TokenId, float>{}; words >> t >> lp;) v.top.emplace_back(t, lp);
    } else {
      ADD_FAILURE() << "unknown line: " << line;
    }
  }
  return out;
}

TEST(Sampler, AgreesWithNumpy) {
  const std::vector<Vector> vectors = ReadVectors("src/engine/testdata/sampler_vectors.txt");
  ASSERT_GE(vectors.size(), 30u);
  for (const Vector& v : vectors) {
    SCOPED_TRACE(v.name);
    Sampler sampler(static_cast<int64_t>(v.logits.size()));
    SamplingParams params = v.params;
    params.logprobs = static_cast<int>(v.top.size());
    for (size_t seed = 0; seed < v.tokens.size(); ++seed) {
      const auto sampled = sampler.Sample({.logits = v.logits,
                                           .params = params,
                                           .prompt = v.prompt,
                                           .answer = v.answer,
                                           .end_ids = v.end_ids,
                                           .seed = seed,
                                           .choice = v.choice});
      ASSERT_TRUE(sampled.ok());
      EXPECT_EQ(sampled->token, v.tokens[seed]) << "seed " << seed;
      ASSERT_EQ(sampled->logprobs->top.size(), v.top.size());
      for (size_t i = 0; i < v.top.size(); ++i) {
        EXPECT_EQ(sampled->logprobs->top[i].first, v.top[i].first);
        EXPECT_NEAR(sampled->logprobs->top[i].second, v.top[i].second, 2e-6);
      }
      if (seed == 0) {
        EXPECT_NEAR(sampled->logprobs->logprob, v.logprob, 2e-6);
      }
    }
  }
}

// Sum of (observed - expected)^2 / expected over tokens with an expectation of 5 or more; the rest is one more class.
double ChiSquare(const std::vector<double>& probabilities, const std::vector<int>& observed, int draws, int* classes) {
  double chi = 0, rest_expected = 0, rest_observed = 0;
  *classes = 0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected < 5) {
      rest_expected += expected;
      rest_observed += observed[i];
      continue;
    }
    chi += (observed[i] - expected) * (observed[i] - expected) / expected;
    ++*classes;
  }
  if (rest_expected >= 5) chi += (rest_observed - rest_expected) * (rest_observed - rest_expected) / rest_expected;
  *classes += rest_expected >= 5;
  return chi;
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  constexpr int kVocab = 50, kDraws = 40000;
  const std::vector<float> logits = RandomLogits(kVocab, 11, 3.0f);
  Sampler sampler(kVocab);
  // The seed changes, then the position, then the choice: each must give independent draws.
  for (const char* varied : {"seed", "position", "choice"}) {
    for (const int64_t top_k : {0, 12}) {
      SCOPED_TRACE(testing::Message() << varied << " top_k " << top_k);
      SamplingParams params;
      params.temperature = 0.8;
      params.top_k = top_k;
      std::vector<double> p(kVocab);
      std::vector<float> sorted = logits;
      std::sort(sorted.rbegin(), sorted.rend());
      double sum = 0;
      for (int i = 0; i < kVocab; ++i) {
        p[i] = top_k == 0 || logits[i] >= sorted[top_k - 1] ? std::exp(logits[i] / 0.8) : 0;
        sum += p[i];
      }
      for (double& x : p) x /= sum;
      std::vector<int> observed(kVocab, 0);
      std::vector<TokenId> prompt(1, 3);
      for (int i = 0; i < kDraws; ++i) {
        const bool by_seed = varied == std::string("seed"), by_choice = varied == std::string("choice");
        if (varied == std::string("position")) prompt.push_back(3);
        ++observed[sampler
                       .Sample({.logits = logits,
                                .params = params,
                                .prompt = prompt,
                                .seed = by_seed ? static_cast<uint64_t>(i) : 5,
                                .choice = by_choice ? static_cast<uint32_t>(i) : 0})
                       ->token];
      }
      int classes = 0;
      const double chi = ChiSquare(p, observed, kDraws, &classes);
      // Wilson and Hilferty's bound for a probability of about 1e-5.
      const double df = classes - 1, z = 4.3, cube = 1 - 2 / (9 * df) + z * std::sqrt(2 / (9 * df));
      EXPECT_LT(chi, df * cube * cube * cube);
      for (int i = 0; i < kVocab; ++i) {
        EXPECT_TRUE(p[i] > 0 || observed[i] == 0) << i;
      }
    }
  }
}

// Which tokens come up in many draws.
std::set<TokenId> DrawnFrom(const std::vector<float>& logits, const SamplingParams& params) {
  Sampler sampler(static_cast<int64_t>(logits.size()));
  std::set<TokenId> drawn;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    drawn.insert(sampler.Sample({.logits = logits, .params = params, .seed = seed})->token);
  }
  return drawn;
}

// Equal logits weigh exactly 1 each, so that every limit below is met with equality.
TEST(Sampler, LimitsThatAreMetExactlyKeepWhatMeetsThem) {
  const std::vector<float> even(8, 2.0f);
  using Set = std::set<TokenId>;
  EXPECT_EQ(DrawnFrom(even, {.top_p = 0.5}), (Set{0, 1, 2, 3}));  // the sum of four is enough: no fifth
  EXPECT_EQ(DrawnFrom(even, {.top_p = 0.125}), (Set{0}));
  EXPECT_EQ(DrawnFrom(even, {.top_p = 0.126}), (Set{0, 1}));
  EXPECT_EQ(DrawnFrom(even, {.top_p = 0.5, .top_k = 4}), (Set{0, 1}));  // of what top_k left
  EXPECT_EQ(DrawnFrom(even, {.top_k = 8}), DrawnFrom(even, {}));        // the whole vocabulary
  EXPECT_EQ(DrawnFrom(even, {.top_k = 7}), (Set{0, 1, 2, 3, 4, 5, 6}));  // of equal ones the last id goes
  std::vector<float> two = even;
  for (size_t i = 0; i < two.size(); i += 2) two[i] = -1.0f;
  EXPECT_EQ(DrawnFrom(two, {.min_p = 1.0}), (Set{1, 3, 5, 7}));  // as likely as the likeliest
  EXPECT_EQ(DrawnFrom(two, {.min_p = ExpF(-3.0f)}), DrawnFrom(two, {}));
  EXPECT_EQ(DrawnFrom(two, {.min_p = std::nextafter(ExpF(-3.0f), 1.0f)}), (Set{1, 3, 5, 7}));
  // min_tokens: the end may be drawn from the token of that number on.
  Sampler sampler(2);
  const std::vector<float> end_wins = {9.0f, 1.0f};
  const std::vector<TokenId> ends = {0}, answer = {1, 1, 1};
  const SamplingParams params{.temperature = 0, .min_tokens = 3};
  for (const size_t given : {0, 2, 3}) {
    const auto sampled = sampler.Sample({.logits = end_wins, .params = params, .answer = std::span(answer).first(given), .end_ids = ends});
    EXPECT_EQ(sampled->token, given < 3 ? 1 : 0) << given;
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  Sampler sampler(4);
  const std::vector<float> logits = {1, 3, 3, 2};
  const SamplingParams params{.temperature = 0};
  EXPECT_EQ(sampler.Sample({.logits = logits, .params = params})->token, 1);
  SamplingParams tiny{.temperature = 1e-300};
  EXPECT_EQ(sampler.Sample({.logits = logits, .params = tiny})->token, 1);
}

TEST(Sampler, LogprobsAreOfTheRawLogitsAndSorted) {
  Sampler sampler(5);
  const std::vector<float> logits = {1, 2, 2, 0, -1};
  SamplingParams params{.temperature = 0, .logit_bias = {{4, 100.0}}, .logprobs = 3};
  const auto sampled = sampler.Sample({.logits = logits, .params = params});
  EXPECT_EQ(sampled->token, 4);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  EXPECT_NEAR(sampled->logprobs->logprob, -1 - std::log(sum), 1e-6);
  ASSERT_EQ(sampled->logprobs->top.size(), 3u);
  EXPECT_EQ(sampled->logprobs->top[0].first, 1);
  EXPECT_EQ(sampled->logprobs->top[1].first, 2);
  EXPECT_EQ(sampled->logprobs->top[2].first, 0);
  params.logprobs = 0;
  EXPECT_TRUE(sampler.Sample({.logits = logits, .params = params})->logprobs->top.empty());
  params.logprobs = -1;
  EXPECT_FALSE(sampler.Sample({.logits = logits, .params = params})->logprobs.has_value());
}

TEST(Sampler, LogitsThatAreNotNumbersAreAnErrorOfThisTokenOnly) {
  Sampler sampler(3);
  const SamplingParams params;
  const std::vector<float> nan = {0, std::numeric_limits<float>::quiet_NaN(), 1};
  EXPECT_EQ(sampler.Sample({.logits = nan, .params = params}).status().code(), StatusCode::kInternal);
  const std::vector<float> good = {0, 1, 1};
  const SamplingParams masked{.min_tokens = 1};
  const std::vector<TokenId> all = {0, 1, 2};
  EXPECT_EQ(sampler.Sample({.logits = good, .params = masked, .end_ids = all}).status().code(), StatusCode::kInternal);
  EXPECT_TRUE(sampler.Sample({.logits = good, .params = params}).ok());
}

}  // namespace
}  // namespace sixfold
