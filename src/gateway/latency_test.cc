// Latencies on /metrics are those of sampling, whenever the news of it comes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The value of a line of /metrics.
double ValueOf(const std::string& page, const std::string& name) {
  const std::string line = "\nsixfold_" + name + "{model_name=\"m\"} ";
  const size_t at = page.find(line);
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stod(page.substr(at + line.size()));
}

std::string BodyOf(const nlohmann::json& more) {
  nlohmann::json body = {{"model", "m"}, {"prompt", "x"}};
  body.update(more);
  return body.dump();
}

// Tokens of choice c: the first 1 s after `start`, the others (c + 1) * 20 ms apart. They come as fast as they can.
ScriptOptions Scripted(const std::string& text, Clock::time_point start) {
  ScriptOptions script = SayText(text);
  script.step_time = std::chrono::microseconds(0);
  script.sampled_at = [start](int choice, int64_t position) {
    return start + milliseconds(1000 + 20 * (choice + 1) * position);
  };
  return script;
}

TEST(Latency, TokensThatComeTogetherHaveTheTimesOfTheirSampling) {
  const Clock::time_point start = Clock::now();
  TestServer under(Scripted("abcdefgh", start));
  ASSERT_EQ(under.Post("/v1/completions", BodyOf({{"n", 2}, {"max_tokens", 5}})).status, 200);
  const std::string page = under.Get("/metrics").body;
  EXPECT_EQ(ValueOf(page, "inter_token_latency_seconds_count"), 8);
  EXPECT_NEAR(ValueOf(page, "inter_token_latency_seconds_sum"), 4 * 0.02 + 4 * 0.04, 1e-9);
  EXPECT_EQ(ValueOf(page, "request_time_per_output_token_seconds_count"), 2);
  EXPECT_NEAR(ValueOf(page, "request_time_per_output_token_seconds_sum"), 0.02 + 0.04, 1e-9);
  EXPECT_EQ(ValueOf(page, "time_to_first_token_seconds_count"), 1);
  const double first = ValueOf(page, "time_to_first_token_seconds_sum");
  EXPECT_LE(first, 1.0) << "the request came after `start`";
  EXPECT_EQ(ValueOf(page, "e2e_request_latency_seconds_count"), 1);
  EXPECT_NEAR(ValueOf(page, "e2e_request_latency_seconds_sum"), first + 4 * 0.04, 1e-6);
}

TEST(Latency, AnAnswerOfOneTokenHasNoTimeBetweenTokens) {
  TestServer under(Scripted("abcdefgh", Clock::now()));
  ASSERT_EQ(under.Post("/v1/completions", BodyOf({{"max_tokens", 1}})).status, 200);
  const std::string page = under.Get("/metrics").body;
  EXPECT_EQ(ValueOf(page, "time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(ValueOf(page, "inter_token_latency_seconds_count"), 0);
  EXPECT_EQ(ValueOf(page, "request_time_per_output_token_seconds_count"), 0);
  EXPECT_EQ(ValueOf(page, "e2e_request_latency_seconds_count"), 1);
}

TEST(Latency, TokensAfterAStopStringAreNotCounted) {
  TestServer under(Scripted("abcdefgh", Clock::now()));
  ASSERT_EQ(under.Post("/v1/completions", BodyOf({{"stop", "c"}, {"max_tokens", 8}})).status, 200);
  const std::string page = under.Get("/metrics").body;
  EXPECT_EQ(ValueOf(page, "inter_token_latency_seconds_count"), 2);
  EXPECT_NEAR(ValueOf(page, "request_time_per_output_token_seconds_sum"), 0.02, 1e-9);
}

}  // namespace
}  // namespace sixfold::gateway
