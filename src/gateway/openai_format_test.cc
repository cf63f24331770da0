#include "gateway/openai_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "gateway/json_writer.h"
#include "gateway/metrics.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;

TEST(JsonWriter, WritesWhatAnotherParserReads) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "é日🙂";
  JsonWriter out;
  out.BeginObject()
      .Key("text")
      .String(all)
      .Key("list")
      .BeginArray()
      .Int(-3)
      .Number(0.1)
      .Float(0.1f)
      .Bool(true)
      .Null();
  out.EndArray().Key("raw").Raw("{\"a\":1}").Key("empty").BeginObject().EndObject().EndObject();
  const Json read = Json::parse(out.text());
  EXPECT_EQ(read["text"].get<std::string>(), all);
  EXPECT_EQ(read["list"].dump(), "[-3,0.1,0.1,true,null]");
  EXPECT_EQ(read["raw"]["a"], 1);
  EXPECT_TRUE(read["empty"].empty());
}

TEST(JsonWriter, InvalidUtf8BecomesReplacementCharacters) {
  for (const std::string& bad :
       {std::string("\xff"), std::string("\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xe6\x97"), std::string("\xf0\x9f\x99")}) {
    JsonWriter out;
    out.String("a" + bad + "b");
    const std::string text = Json::parse(out.text());
    EXPECT_EQ(text.front(), 'a');
    EXPECT_EQ(text.back(), 'b');
    EXPECT_NE(text.find("\xef\xbf\xbd"), std::string::npos);
  }
}

TEST(JsonWriter, NumbersThatJsonCannotSayAreClamped) {
  JsonWriter out;
  out.BeginArray().Number(INFINITY).Number(-INFINITY).Number(NAN).Float(-INFINITY).EndArray();
  EXPECT_TRUE(Json::accept(out.text()));
}

TEST(Format, CompletionsKeepTokensApartThatAreNoText) {
  ChoiceNews news{.text = "x", .with_logprobs = true};
  news.logprobs.push_back({.token = "\xf0\x9f",
                           .logprob = -INFINITY,
                           .top = {{"\x99", -1.0f}, {"\x82", -2.0f}},
                           .text_offset = 4});
  const AnswerHead head{.endpoint = Endpoint::kCompletions, .id = "i", .model = "m"};
  const Json logprobs =
      Json::parse(StreamChunk(head, news, UsageField::kAbsent, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "bytes:\\xf0\\x9f");
  EXPECT_EQ(logprobs["token_logprobs"][0], -9999.0);
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 3u) << "the sampled one is always there";
  EXPECT_EQ(logprobs["text_offset"][0], 4);
}

TEST(Metrics, HistogramsAreCumulativeAndEveryFamilyHasBothNames) {
  Metrics metrics;
  metrics.time_to_first_token.Observe(0.03);
  metrics.time_to_first_token.Observe(5000, 2);
  const EngineStats engine{.running = 3,
                           .waiting = 4,
                           .blocks_total = 8,
                           .blocks_used = 2,
                           .prompt_tokens = 11,
                           .replicas = {{.running = 1}, {.running = 2, .blocks_used = 2}}};
  const std::string text =
      metrics.Render({.engine = engine, .model_name = "m\"x", .connections = 5});
  for (const std::string prefix : {"sixfold_", "vllm:"}) {
    const auto has = [&](const std::string& line) {
      return text.find(prefix + line + "\n") != std::string::npos;
    };
    EXPECT_TRUE(has("time_to_first_token_seconds_bucket{model_name=\"m\\\"x\",le=\"0.04\"} 1"))
        << text.substr(0, 2000);
    EXPECT_TRUE(has("time_to_first_token_seconds_bucket{model_name=\"m\\\"x\",le=\"2560\"} 1"));
    EXPECT_TRUE(has("time_to_first_token_seconds_bucket{model_name=\"m\\\"x\",le=\"+Inf\"} 3"));
    EXPECT_TRUE(has("time_to_first_token_seconds_count{model_name=\"m\\\"x\"} 3"));
    EXPECT_TRUE(has("num_requests_running{model_name=\"m\\\"x\"} 3"));
    EXPECT_TRUE(has("num_requests_waiting{model_name=\"m\\\"x\"} 4"));
    EXPECT_TRUE(has("kv_cache_usage_perc{model_name=\"m\\\"x\"} 0.25"));
    EXPECT_TRUE(has("prompt_tokens_total{model_name=\"m\\\"x\"} 11"));
    EXPECT_TRUE(has("request_success_total{model_name=\"m\\\"x\",finished_reason=\"stop\"} 0"));
  }
  for (const std::string line :
       {"kv_blocks_used{model_name=\"m\\\"x\"} 2", "engine_up{model_name=\"m\\\"x\"} 1",
        "replica_requests_running{model_name=\"m\\\"x\",replica=\"0\"} 1",
        "replica_kv_blocks_used{model_name=\"m\\\"x\",replica=\"1\"} 2"}) {
    EXPECT_NE(text.find("sixfold_" + line + "\n"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace sixfold::gateway
