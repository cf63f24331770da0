#include "engine/request.h"

#include <fmt/format.h>

#include <cmath>

#include "model/config.h"

namespace sixfold {
namespace {

// A closed range, unless a bound is said to be open. NaN is in no range.
struct Range {
  double low = 0;
  double high = 0;
  const char* text = "";
  enum class Low : uint8_t { kClosed, kOpen } low_bound = Low::kClosed;
};

Status CheckRange(const char* field, double value, const Range& range) {
  const bool above = range.low_bound == Range::Low::kOpen ? value > range.low : value >= range.low;
  if (above && value <= range.high) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must be in {}", field, value, range.text));
}

Status CheckToken(const char* field, TokenId token, int64_t vocab) {
  if (token >= 0 && token < vocab) return OkStatus();
  return InvalidArgument(fmt::format("{} has token id {}; the vocabulary's are 0 to {}", field, token, vocab - 1));
}

}  // namespace

Status ValidateSampling(const SamplingParams& s, int64_t vocab) {
  SF_RETURN_IF_ERROR(CheckRange("temperature", s.temperature, {0, kTemperatureMax, "[0, 2]"}));
  SF_RETURN_IF_ERROR(CheckRange("top_p", s.top_p, {0, 1, "(0, 1]", Range::Low::kOpen}));
  if (s.top_k < -1) {
    return InvalidArgument(fmt::format("top_k is {}; it must be -1 or 0 (all tokens) or more", s.top_k));
  }
  SF_RETURN_IF_ERROR(CheckRange("min_p", s.min_p, {0, 1, "[0, 1]"}));
  SF_RETURN_IF_ERROR(CheckRange("repetition_penalty", s.repetition_penalty,
                                {kRepetitionPenaltyMin, kRepetitionPenaltyMax,
                                 "[1.18e-38, 3.4e38], what fp32 can divide by"}));
  SF_RETURN_IF_ERROR(CheckRange("presence_penalty", s.presence_penalty, {-2, 2, "[-2, 2]"}));
  SF_RETURN_IF_ERROR(CheckRange("frequency_penalty", s.frequency_penalty, {-2, 2, "[-2, 2]"}));
  for (const auto& [token, bias] : s.logit_bias) {
    SF_RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab));
    SF_RETURN_IF_ERROR(CheckRange("logit_bias", bias, {-100, 100, "[-100, 100]"}));
  }
  SF_RETURN_IF_ERROR(CheckRange("n", s.n, {1, 128, "[1, 128]"}));
  if (s.max_tokens < 1) {
    return InvalidArgument(fmt::format("max_tokens is {}; it must be 1 or more", s.max_tokens));
  }
  if (s.min_tokens < 0 || s.min_tokens > s.max_tokens) {
    return InvalidArgument(
        fmt::format("min_tokens is {}; it must be in [0, max_tokens], here [0, {}]", s.min_tokens, s.max_tokens));
  }
  for (const TokenId token : s.stop_token_ids) SF_RETURN_IF_ERROR(CheckToken("stop_token_ids", token, vocab));
  SF_RETURN_IF_ERROR(CheckRange("logprobs", s.logprobs, {-1, 20, "[-1, 20]"}));
  return OkStatus();
}

}  // namespace sixfold
