// Every field of both bodies: its default, null, its bounds, one step outside, and a wrong type.
#include "gateway/openai_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace sixfold::gateway {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;

constexpr int64_t kVocab = 1000;

std::string Body(Endpoint endpoint, const std::string& members) {
  const std::string base = endpoint == Endpoint::kChat
                               ? R"("messages":[{"role":"user","content":"hi"}])"
                               : R"("prompt":"hi")";
  return "{" + base + (members.empty() ? "" : "," + members) + "}";
}

std::variant<ApiRequest, ApiError> ParseText(Endpoint endpoint, const std::string& text,
                                             const GenerationDefaults& defaults = {}) {
  return ParseApiRequest(endpoint, text, {.vocab = kVocab, .defaults = defaults});
}

ApiRequest MustParse(Endpoint endpoint, const std::string& members,
                     const GenerationDefaults& defaults = {}) {
  auto result = ParseText(endpoint, Body(endpoint, members), defaults);
  if (auto* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << members << ": " << error->message;
    return {};
  }
  return std::get<ApiRequest>(result);
}

// The error, or nothing when the body was taken.
std::optional<ApiError> ErrorOf(Endpoint endpoint, const std::string& members) {
  auto result = ParseText(endpoint, Body(endpoint, members));
  if (auto* error = std::get_if<ApiError>(&result)) return *error;
  return std::nullopt;
}

ApiError TextError(const std::string& text, Endpoint endpoint = Endpoint::kChat) {
  auto result = ParseText(endpoint, text);
  if (auto* error = std::get_if<ApiError>(&result)) return *error;
  ADD_FAILURE() << "taken: " << text.substr(0, 100);
  return {};
}

struct RangeCase {
  const char* field;
  std::vector<const char*> good;  // JSON values
  std::vector<const char*> out_of_range;
  const char* range;  // part of the message
};

const RangeCase kRanges[] = {
    {"temperature", {"0", "0.0", "1", "2", "1e-3"}, {"-0.001", "2.001", "1e308"}, "[0"},
    {"top_p", {"1", "0.001", "1.0"}, {"0", "1.001", "-1"}, "(0"},
    {"min_p", {"0", "1", "0.5"}, {"-0.1", "1.1"}, "[0"},
    {"repetition_penalty",
     {"2", "0.01", "1", "2.5", "1e-37", "3e38"},
     {"0", "-1", "1e-40", "1e-300", "3.5e38", "1e300"},
     "[1.17"},
    {"presence_penalty", {"-2", "2", "0"}, {"-2.1", "2.1"}, "[-2"},
    {"frequency_penalty", {"-2", "2", "0.5"}, {"-2.1", "2.1"}, "[-2"},
    {"top_k", {"-1", "0", "1", "100000", "5.0"}, {"-2"}, "at least -1"},
    {"n", {"1", "128"}, {"0", "129", "-1", "18446744073709551615"}, "[1, 128]"},
    {"max_tokens",
     {"1", "9223372036854775807", "16.0"},
     {"0", "-1", "9223372036854775808"},
     "at least 1"},
    {"max_completion_tokens", {"1", "100"}, {"0", "-5"}, "at least 1"},
    {"min_tokens", {"0", "1"}, {"-1"}, "at least 0"},
    {"stop_token_ids",
     {"[]", "[0]", "[999]", "[1,2,3]"},
     {"[1000]", "[-1]", "[1,1000]"},
     "[0, 999]"},
    {"logit_bias",
     {"{}", "{\"0\":-100}", "{\"999\":100}"},
     {"{\"1000\":1}", "{\"x\":1}", "{\"-1\":1}", "{\"1\":101}", "{\"1\":-101}", "{\"\":1}",
      "{\"99999999999\":1}"},
     "[0, 999]"},
};

TEST(Schema, BoundsAreTakenAndWhatIsOutsideNamesFieldAndRange) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const RangeCase& c : kRanges) {
      const std::string field = std::string("\"") + c.field + "\":";
      EXPECT_FALSE(ErrorOf(endpoint, field + "null")) << c.field;
      for (const char* value : c.good) {
        const auto error = ErrorOf(endpoint, field + value);
        EXPECT_FALSE(error) << c.field << "=" << value << ": " << error->message;
      }
      for (const char* value : c.out_of_range) {
        const auto error = ErrorOf(endpoint, field + value);
        ASSERT_TRUE(error) << c.field << "=" << value;
        EXPECT_EQ(error->status, 400);
        EXPECT_EQ(error->type, "invalid_request_error");
        EXPECT_EQ(error->param, c.field);
        EXPECT_EQ(error->code, "invalid_value") << c.field << "=" << value;
        EXPECT_THAT(error->message, HasSubstr(c.field));
        EXPECT_THAT(error->message, HasSubstr(c.range)) << c.field << "=" << value;
      }
    }
  }
}

TEST(Schema, WrongTypesNameTheField) {
  const std::vector<const char*> all = {"true", "\"x\"",   "[]",           "{}",
                                        "1.5",  "[\"x\"]", "{\"1\":\"x\"}"};
  // Fields and the values among `all` that are of a right type.
  const std::vector<std::pair<const char*, std::vector<std::string>>> cases = {
      {"temperature", {"1.5"}},
      {"top_p", {"1.5"}},
      {"min_p", {"1.5"}},
      {"repetition_penalty", {"1.5"}},
      {"presence_penalty", {"1.5"}},
      {"frequency_penalty", {"1.5"}},
      {"top_k", {"1.5"}},
      {"n", {"1.5"}},
      {"max_tokens", {"1.5"}},
      {"max_completion_tokens", {"1.5"}},
      {"min_tokens", {"1.5"}},
      {"seed", {}},
      {"stop_token_ids", {"[]"}},
      {"logit_bias", {"{}"}},
      {"stop", {"\"x\"", "[]", "[\"x\"]"}},
      {"stream", {"true"}},
      {"ignore_eos", {"true"}},
      {"skip_special_tokens", {"true"}},
      {"include_stop_str_in_output", {"true"}},
      {"model", {"\"x\""}},
  };
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const auto& [field, right] : cases) {
      for (const std::string value : all) {
        if (std::find(right.begin(), right.end(), value) != right.end()) continue;
        const auto error = ErrorOf(endpoint, std::string("\"") + field + "\":" + value);
        ASSERT_TRUE(error) << field << "=" << value;
        EXPECT_EQ(error->param, field);
        EXPECT_EQ(error->code, "invalid_type") << field << "=" << value << ": " << error->message;
      }
    }
  }
  // A number, but no integer: out of range rather than of the wrong type.
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"n\":1.5")->code, "invalid_value");
}

TEST(Schema, NullAndAbsentAreTheDefaults) {
  const char* nulls =
      R"("model":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,"n":null,"seed":null,"stop":null,)"
      R"("stream":null,"stream_options":null,"logprobs":null,"max_tokens":null,"logit_bias":null,"tools":null,)"
      R"("response_format":null,"functions":null,"tool_choice":null,"suffix":null,"echo":null,"best_of":null)";
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const char* members : {"", nulls}) {
      const ApiRequest request = MustParse(endpoint, members);
      EXPECT_EQ(request.model, "");
      EXPECT_EQ(request.sampling.temperature, 1.0);
      EXPECT_EQ(request.sampling.top_p, 1.0);
      EXPECT_EQ(request.sampling.top_k, 0);
      EXPECT_EQ(request.sampling.repetition_penalty, 1.0);
      EXPECT_EQ(request.sampling.n, 1);
      EXPECT_FALSE(request.sampling.seed);
      EXPECT_EQ(request.sampling.logprobs, -1);
      EXPECT_FALSE(request.stream);
      EXPECT_FALSE(request.include_usage);
      EXPECT_TRUE(request.skip_special_tokens);
      EXPECT_EQ(request.max_tokens_given, endpoint == Endpoint::kCompletions);
      EXPECT_EQ(request.sampling.max_tokens,
                endpoint == Endpoint::kCompletions ? 16 : std::numeric_limits<int64_t>::max());
    }
  }
}

TEST(Schema, DefaultsComeFromTheModelsGenerationConfig) {
  GenerationDefaults defaults;
  defaults.temperature = 0.6;
  defaults.top_p = 0.95;
  defaults.top_k = 20;
  defaults.repetition_penalty = 1.1;
  defaults.max_new_tokens = 77;
  const ApiRequest request = MustParse(Endpoint::kChat, "\"top_k\":null", defaults);
  EXPECT_EQ(request.sampling.temperature, 0.6);
  EXPECT_EQ(request.sampling.top_p, 0.95);
  EXPECT_EQ(request.sampling.top_k, 20);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.max_tokens, 77);
  EXPECT_FALSE(request.max_tokens_given);
  EXPECT_EQ(
      MustParse(Endpoint::kChat, "\"temperature\":0,\"top_k\":-1", defaults).sampling.temperature,
      0.0);
}

TEST(Schema, FieldsReachTheSampling) {
  const ApiRequest request = MustParse(
      Endpoint::kChat,
      R"("seed":-1,"stop":["a","b"],"stop_token_ids":[5,6],"ignore_eos":true,"min_tokens":3,"max_tokens":9,)"
      R"("max_completion_tokens":7,"logit_bias":{"3":-1.5},"logprobs":true,"top_logprobs":4,"stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},"unknown_field":[1],"store":true)");
  EXPECT_EQ(request.sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.sampling.stop_token_ids, (Tokens{5, 6}));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_EQ(request.sampling.min_tokens, 3);
  EXPECT_EQ(request.sampling.max_tokens, 7) << "the newer name wins";
  EXPECT_EQ(request.sampling.logit_bias.at(3), -1.5);
  EXPECT_EQ(request.sampling.logprobs, 4);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.continuous_usage);
  EXPECT_EQ(MustParse(Endpoint::kChat, "\"logprobs\":true").sampling.logprobs, 0);
  EXPECT_EQ(MustParse(Endpoint::kCompletions, "\"logprobs\":20").sampling.logprobs, 20);
  EXPECT_EQ(MustParse(Endpoint::kChat, "\"seed\":18446744073709551615").sampling.seed, ~0ull);
}

TEST(Schema, FieldsThatContradictEachOther) {
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"top_logprobs\":2")->param, "top_logprobs");
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"logprobs\":true,\"top_logprobs\":21")->param,
            "top_logprobs");
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"logprobs\":2")->param, "logprobs");
  EXPECT_EQ(ErrorOf(Endpoint::kCompletions, "\"logprobs\":21")->param, "logprobs");
  EXPECT_EQ(ErrorOf(Endpoint::kCompletions, "\"logprobs\":true")->param, "logprobs");
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"min_tokens\":5,\"max_tokens\":4")->param, "min_tokens");
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"stream_options\":{\"include_usage\":true}")->param,
            "stream_options");
  EXPECT_EQ(ErrorOf(Endpoint::kChat, "\"stream\":true,\"stream_options\":3")->param,
            "stream_options");
  EXPECT_EQ(
      ErrorOf(Endpoint::kChat, "\"stream\":true,\"stream_options\":{\"include_usage\":1}")->param,
      "stream_options.include_usage");
  EXPECT_EQ(ErrorOf(Endpoint::kCompletions, "\"best_of\":2")->param, "best_of");
  EXPECT_FALSE(ErrorOf(Endpoint::kCompletions, "\"best_of\":2,\"n\":2"));
  EXPECT_EQ(ErrorOf(Endpoint::kChat, R"("chat_template_kwargs":[1])")->param,
            "chat_template_kwargs");
}

TEST(Schema, StopStrings) {
  EXPECT_EQ(MustParse(Endpoint::kChat, "\"stop\":\"x\"").stop, std::vector<std::string>{"x"});
  std::string many = "\"stop\":[\"0\"";
  for (int i = 1; i < 16; ++i) many += ",\"" + std::to_string(i) + "\"";
  EXPECT_EQ(MustParse(Endpoint::kChat, many + "]").stop.size(), 16u);
  for (const std::string& bad :
       {many + ",\"z\"]", std::string("\"stop\":\"\""), std::string("\"stop\":[\"a\",\"\"]"),
        "\"stop\":\"" + std::string(1025, 'x') + "\""}) {
    ASSERT_TRUE(ErrorOf(Endpoint::kChat, bad)) << bad.substr(0, 40);
    EXPECT_EQ(ErrorOf(Endpoint::kChat, bad)->param, "stop");
  }
}

TEST(Schema, UnsupportedFieldsAreRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> both = {
      {"response_format", R"({"type":"json_object"})"},
      {"guided_json", "{}"},
      {"guided_regex", "\"a\""},
      {"guided_choice", "[]"},
      {"guided_grammar", "\"g\""},
      {"structured_outputs", "{}"},
      {"grammar", "\"g\""},
      {"json_schema", "{}"},
      {"regex", "\"a\""},
      {"ebnf", "\"a\""},
      {"prompt_logprobs", "0"},
      {"use_beam_search", "true"},
      {"length_penalty", "0.5"},
      {"logits_processors", "[\"p\"]"},
      {"bad_words", "[\"b\"]"},
      {"allowed_token_ids", "[1]"},
      {"truncate_prompt_tokens", "5"},
      {"return_token_ids", "true"},
      {"detokenize", "false"},
      {"return_tokens_as_token_ids", "true"}};
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const auto& [field, value] : both) {
      const auto error = ErrorOf(endpoint, std::string("\"") + field + "\":" + value);
      ASSERT_TRUE(error) << field;
      EXPECT_EQ(error->param, field);
      EXPECT_EQ(error->code, "unsupported_parameter");
    }
  }
  const std::vector<std::pair<const char*, const char*>> chat = {
      {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
      {"functions", R"([{"name":"f"}])"},
      {"tool_choice", "\"required\""},
      {"function_call", R"({"name":"f"})"},
      {"audio", "{}"},
      {"modalities", "[\"text\",\"audio\"]"},
      {"chat_template", "\"x\""},
      {"continue_final_message", "true"},
      {"documents", "[{}]"},
      {"web_search_options", "{}"},
      {"verbosity", "\"low\""}};
  for (const auto& [field, value] : chat) {
    const auto error = ErrorOf(Endpoint::kChat, std::string("\"") + field + "\":" + value);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->param, field);
    EXPECT_FALSE(ErrorOf(Endpoint::kCompletions, std::string("\"") + field + "\":" + value))
        << "unknown there: " << field;
  }
  for (const char* members : {"\"suffix\":\"s\"", "\"echo\":true", "\"prompt_embeds\":\"x\""}) {
    EXPECT_TRUE(ErrorOf(Endpoint::kCompletions, members)) << members;
  }
  for (const char* neutral :
       {R"("response_format":{"type":"text"})", R"("tools":[])", R"("modalities":["text"])",
        R"("tools":[{"type":"function"}],"tool_choice":"none")", R"("length_penalty":1.0)",
        R"("functions":[{}],"function_call":"none")", R"("tool_choice":"auto")",
        R"("use_beam_search":false)"}) {
    EXPECT_FALSE(ErrorOf(Endpoint::kChat, neutral)) << neutral;
  }
}

// Each key is found without reading those before it, else this test takes minutes.
TEST(Schema, LargeObjectsKeepTheirOrder) {
  constexpr int kKeys = 200000;
  std::string object = "{";
  for (int i = kKeys; i-- > 0;)
    object += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  object += "\"k7\":-7}";
  const std::string given =
      MustParse(Endpoint::kChat, "\"chat_template_kwargs\":" + object).template_kwargs_json;
  EXPECT_EQ(given.substr(0, 30), object.substr(0, 30));
  EXPECT_NE(given.find("\"k8\":8,\"k7\":-7,\"k6\":6,"), std::string::npos)
      << "of equal keys the last one counts, in the place of the first, as in Python";
}

TEST(Schema, Messages) {
  const auto messages = [](const std::string& list) {
    auto result = ParseText(Endpoint::kChat, "{\"messages\":" + list + "}");
    auto* error = std::get_if<ApiError>(&result);
    return error ? error->param : std::get<ApiRequest>(result).messages_json;
  };
  // What a template may take reaches it as it came; the order of keys is what it prints.
  for (const char* same :
       {R"([{"role":"developer","content":"a"}])", R"([{"role":"ipython","content":"a"}])",
        R"([{"role":"tool","tool_call_id":"1","name":"f","content":"a"}])",
        R"([{"content":"a","role":"king","zip":{"z":1,"a":[{"y":2,"b":3}]}}])",
        R"([{"role":"assistant","content":null}])", R"([{"role":"user","content":null}])",
        R"([{"role":"assistant","reasoning_content":"r"}])",
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"not json"}}]}])",
        R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"[1]","name":"f"}}]}])"}) {
    EXPECT_EQ(messages(same), same);
  }
  EXPECT_EQ(
      messages(
          R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"}])"),
      R"([{"role":"user","content":"a\nb","name":"n"}])");
  EXPECT_EQ(messages(R"([{"role":"assistant","tool_calls":[],"content":"a"}])"),
            R"([{"role":"assistant","content":"a"}])");
  EXPECT_EQ(
      messages(
          R"([{"role":"assistant","tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":"{\"zip\":1, \"city\":{\"y\":2,\"b\":3}}"}}],"content":null}])"),
      R"([{"role":"assistant","tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":{"zip":1,"city":{"y":2,"b":3}}}}],"content":null}])")
      << "arguments become an object in the order the model wrote";
  EXPECT_EQ(messages("[]"), "messages");
  EXPECT_EQ(messages("{}"), "messages");
  EXPECT_EQ(messages("null"), "messages");
  EXPECT_EQ(messages("[3]"), "messages[0]");
  EXPECT_EQ(messages(R"([{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(messages(R"([{"role":5,"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"role":"user"}])"), "messages[1].content");
  EXPECT_EQ(messages(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(messages(R"([{"role":"user","content":["a"]}])"), "messages[0].content");
  EXPECT_EQ(
      messages(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}])"),
      "messages[0].content");
  EXPECT_EQ(messages(R"([{"role":"assistant","content":"a","tool_calls":3}])"),
            "messages[0].tool_calls");
  EXPECT_EQ(
      MustParse(Endpoint::kChat,
                R"("chat_template_kwargs":{"z":1,"a":{"y":2,"b":3}},"reasoning_effort":"low")")
          .template_kwargs_json,
      R"({"z":1,"a":{"y":2,"b":3},"reasoning_effort":"low"})");
}

TEST(Schema, Prompts) {
  const auto prompts = [](const std::string& value) {
    auto result = ParseText(Endpoint::kCompletions, "{\"prompt\":" + value + "}");
    if (std::get_if<ApiError>(&result)) return std::vector<PromptInput>{};
    return std::get<ApiRequest>(result).prompts;
  };
  EXPECT_EQ(prompts("\"a\""), std::vector<PromptInput>{std::string("a")});
  EXPECT_EQ(prompts("[\"a\",\"b\"]"),
            (std::vector<PromptInput>{std::string("a"), std::string("b")}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<PromptInput>{Tokens{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"), (std::vector<PromptInput>{Tokens{1}, Tokens{2, 3}}));
  for (const char* bad : {"null", "[]", "5", "{}", "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]",
                          "[[\"a\"]]", "[1000]", "[[-1]]", "[1.5]"}) {
    EXPECT_TRUE(prompts(bad).empty()) << bad;
    EXPECT_EQ(TextError(std::string("{\"prompt\":") + bad + "}", Endpoint::kCompletions).param,
              "prompt");
  }
  std::string many = "[\"a\"";
  for (int i = 1; i < kChoicesMax; ++i) many += ",\"a\"";
  EXPECT_EQ(prompts(many + "]").size(), static_cast<size_t>(kChoicesMax));
  EXPECT_TRUE(prompts(many + ",\"a\"]").empty());
  EXPECT_EQ(TextError("{\"n\":2,\"prompt\":" + many + "]}", Endpoint::kCompletions).param, "n");
}

TEST(Schema, WhatIsNotJsonIsRefused) {
  const std::string deep_array =
      "{\"messages\":" + std::string(1000, '[') + std::string(1000, ']') + "}";
  const std::string deep_object = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
    return text;
  }();
  for (const std::string& bad :
       {std::string(""), std::string("{"), std::string("[]"), std::string("null"),
        std::string("\"x\""), std::string("{\"messages\":NaN}"),
        std::string("{\"temperature\":1e400}"), deep_array, deep_object,
        std::string("{\"model\":\"\xff\xfe\"}"), std::string("{\"model\":\"\xed\xa0\x80\"}"),
        std::string("{\"model\":\"\\ud800\"}"), std::string("{\"model\":\"\\udc00x\"}"),
        std::string("{} {}"), std::string("{\"a\":1,}"), std::string("\0\0", 2)}) {
    const ApiError error = TextError(bad);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.code, "invalid_json") << bad.substr(0, 40);
  }
  EXPECT_THAT(TextError(deep_array).message, HasSubstr("100 levels"));
}

TEST(Schema, OfEqualKeysTheLastCounts) {
  EXPECT_EQ(MustParse(Endpoint::kChat, "\"n\":5,\"n\":2").sampling.n, 2);
  EXPECT_EQ(MustParse(Endpoint::kChat, "\"model\":\"\\ud83d\\ude42\"").model, "🙂");
}

}  // namespace
}  // namespace sixfold::gateway
