#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sixfold {
namespace {

TEST(ValidateSampling, TakesTheBoundsAndTheDefaults) {
  EXPECT_TRUE(ValidateSampling({}, 10).ok());
  EXPECT_TRUE(ValidateSampling({.temperature = 2,
                                .top_p = 1e-9,
                                .top_k = -1,
                                .min_p = 1,
                                .repetition_penalty = 2,
                                .presence_penalty = -2,
                                .frequency_penalty = 2,
                                .logit_bias = {{9, -100}},
                                .n = 128,
                                .max_tokens = 1,
                                .min_tokens = 1,
                                .stop_token_ids = {0},
                                .logprobs = 20},
                               10)
                  .ok());
}

TEST(ValidateSampling, NamesFieldAndRange) {
  struct Case {
    SamplingParams params;
    const char* field;
    const char* range;
  };
  const Case cases[] = {
      {{.temperature = -0.1}, "temperature", "[0, 2]"},
      {{.temperature = std::nan("")}, "temperature", "[0, 2]"},
      {{.top_p = 0}, "top_p", "(0, 1]"},
      {{.top_p = 1.1}, "top_p", "(0, 1]"},
      {{.top_k = -2}, "top_k", "-1 or 0"},
      {{.min_p = 1.5}, "min_p", "[0, 1]"},
      {{.repetition_penalty = 0}, "repetition_penalty", "fp32"},
      {{.repetition_penalty = -1}, "repetition_penalty", "fp32"},
      {{.repetition_penalty = 1e-40}, "repetition_penalty", "fp32"},
      {{.repetition_penalty = 1e39}, "repetition_penalty", "fp32"},
      {{.presence_penalty = 2.5}, "presence_penalty", "[-2, 2]"},
      {{.frequency_penalty = -3}, "frequency_penalty", "[-2, 2]"},
      {{.logit_bias = {{3, 101.0}}}, "logit_bias", "[-100, 100]"},
      {{.logit_bias = {{10, 1.0}}}, "logit_bias", "0 to 9"},
      {{.n = 129}, "n is", "[1, 128]"},
      {{.max_tokens = 0}, "max_tokens", "1 or more"},
      {{.max_tokens = 4, .min_tokens = 5}, "min_tokens", "[0, 4]"},
      {{.stop_token_ids = {-1}}, "stop_token_ids", "0 to 9"},
      {{.logprobs = 21}, "logprobs", "[-1, 20]"},
  };
  for (const Case& c : cases) {
    const Status status = ValidateSampling(c.params, 10);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.field;
    EXPECT_NE(status.message().find(c.field), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(c.range), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace sixfold
