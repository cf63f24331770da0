// The table of fields: aliases, refusals and the values that pass, names that are ignored, and that
// the parser and docs/api.md say what the table says. Cases here name fields as clients send them.
#include "gateway/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "engine/request.h"
#include "gateway/testing/api_docs.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kVocab = 1000;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr Endpoint kEndpoints[] = {Endpoint::kChat, Endpoint::kCompletions};

std::variant<ApiRequest, ApiError> Parse(Endpoint endpoint, const std::string& members) {
  const std::string base = endpoint == Endpoint::kChat
                               ? R"("messages":[{"role":"user","content":"hi"}])"
                               : R"("prompt":"hi")";
  return ParseApiRequest(endpoint, "{" + base + (members.empty() ? "" : ",") + members + "}",
                         {.vocab = kVocab, .defaults = {}});
}

ApiRequest MustParse(Endpoint endpoint, const std::string& members) {
  auto result = Parse(endpoint, members);
  if (auto* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << members << ": " << error->message;
    return {};
  }
  return std::get<ApiRequest>(result);
}

// The error; one with an empty message when the body was taken.
ApiError ErrorOf(Endpoint endpoint, const std::string& members) {
  auto result = Parse(endpoint, members);
  if (auto* error = std::get_if<ApiError>(&result)) return *error;
  return {.message = ""};
}

std::string Member(const std::string& name, const std::string& value) {
  return "\"" + name + "\":" + value;
}

TEST(RequestFields, AliasesReachTheirFields) {
  for (const Endpoint e : kEndpoints) {
    EXPECT_EQ(MustParse(e, R"("repeat_penalty":1.5)").sampling.repetition_penalty, 1.5);
    EXPECT_EQ(MustParse(e, R"("rep_pen":1.5)").sampling.repetition_penalty, 1.5);
    for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict", "num_predict",
                             "max_new_tokens", "max_output_tokens", "max_tokens_to_sample"}) {
      const ApiRequest request = MustParse(e, Member(name, "7"));
      EXPECT_EQ(request.sampling.max_tokens, 7) << name;
      EXPECT_TRUE(request.max_tokens_given) << name;
      EXPECT_EQ(request.ignored, "") << name;
    }
    EXPECT_EQ(MustParse(e, R"("min_new_tokens":3)").sampling.min_tokens, 3);
    EXPECT_EQ(MustParse(e, R"("random_seed":5)").sampling.seed, 5u);
    EXPECT_EQ(MustParse(e, R"("sampling_seed":5)").sampling.seed, 5u);
    EXPECT_EQ(MustParse(e, R"("n_cmpl":2)").sampling.n, 2);
    EXPECT_EQ(MustParse(e, R"("num_return_sequences":2)").sampling.n, 2);
    for (const char* name : {"stop_sequences", "stop_strings", "stop_sequence"})
      EXPECT_EQ(MustParse(e, Member(name, R"(["a"])")).stop, std::vector<std::string>{"a"});
  }
}

TEST(RequestFields, NoLimitOfOtherServersIsWhatTheContextLeaves) {
  for (const Endpoint e : kEndpoints) {
    for (const char* members : {R"("n_predict":-1)", R"("num_predict":-2)"}) {
      const ApiRequest request = MustParse(e, members);
      EXPECT_EQ(request.sampling.max_tokens, kNoLimit) << members;
      EXPECT_FALSE(request.max_tokens_given) << members;
    }
    EXPECT_EQ(ErrorOf(e, R"("n_predict":0)").param, "n_predict");
    EXPECT_EQ(ErrorOf(e, R"("max_tokens":-1)").param, "max_tokens");
    EXPECT_EQ(ErrorOf(e, R"("max_tokens":5,"n_predict":-1)").param, "n_predict");
  }
}

TEST(RequestFields, AnAliasIsRefusedUnderTheNameItWasGivenBy) {
  for (const Endpoint e : kEndpoints) {
    const ApiError range = ErrorOf(e, R"("repeat_penalty":-1)");
    EXPECT_EQ(range.param, "repeat_penalty");
    EXPECT_EQ(range.code, "invalid_value");
    EXPECT_THAT(range.message, HasSubstr("'repeat_penalty' must be"));
    EXPECT_EQ(ErrorOf(e, R"("max_new_tokens":"9")").code, "invalid_type");
    const ApiError lengths = ErrorOf(e, R"("min_new_tokens":5,"max_new_tokens":4)");
    EXPECT_EQ(lengths.param, "min_new_tokens");
    EXPECT_THAT(lengths.message, HasSubstr("'max_new_tokens', which is 4"));
  }
}

TEST(RequestFields, AnAliasBesideItsFieldMustAgree) {
  for (const Endpoint e : kEndpoints) {
    for (const auto& [members, param] : std::vector<std::pair<const char*, const char*>>{
             {R"("repetition_penalty":1.1,"repeat_penalty":1.2)", "repeat_penalty"},
             {R"("repeat_penalty":1.1,"rep_pen":1.2)", "rep_pen"},
             {R"("max_tokens":5,"n_predict":6)", "n_predict"},
             {R"("max_completion_tokens":5,"max_new_tokens":6)", "max_new_tokens"},
             {R"("min_tokens":0,"min_new_tokens":1)", "min_new_tokens"},
             {R"("seed":1,"random_seed":2)", "random_seed"},
             {R"("n":1,"n_cmpl":2)", "n_cmpl"},
             {R"("stop":"a","stop_sequences":["b"])", "stop_sequences"}}) {
      const ApiError error = ErrorOf(e, members);
      EXPECT_EQ(error.status, 400) << members;
      EXPECT_EQ(error.param, param) << members;
      EXPECT_EQ(error.code, "invalid_value") << members;
      EXPECT_THAT(error.message, HasSubstr("differ")) << members;
    }
    for (const char* members :
         {R"("repetition_penalty":1.5,"repeat_penalty":1.50)", R"("max_tokens":5,"n_predict":5.0)",
          R"("stop":"a","stop_sequences":["a"])", R"("seed":1,"random_seed":null)",
          R"("repetition_penalty":null,"repeat_penalty":1.2)"}) {
      EXPECT_EQ(ErrorOf(e, members).message, "") << members;
    }
  }
  // The two names of the OpenAI API itself: the newer one counts, the older one must be one.
  EXPECT_EQ(
      MustParse(Endpoint::kChat, R"("max_tokens":9,"max_completion_tokens":7)").sampling.max_tokens,
      7);
  EXPECT_EQ(ErrorOf(Endpoint::kChat, R"("max_tokens":0,"max_completion_tokens":7)").param,
            "max_tokens");
}

struct RefusedCase {
  const char* field;
  std::vector<const char*> refused, pass;
};

const RefusedCase kRefused[] = {
    {"typical_p", {"0.9", "0", "\"x\""}, {"1", "1.0", "null"}},
    {"tfs_z", {"0.9"}, {"1"}},
    {"top_a", {"0.2"}, {"0"}},
    {"epsilon_cutoff", {"3"}, {"0"}},
    {"eta_cutoff", {"3"}, {"0"}},
    {"mirostat", {"1", "2", "true"}, {"0"}},
    {"mirostat_mode", {"2"}, {"0"}},
    {"mirostat_tau", {"5", "3.5"}, {}},
    {"mirostat_eta", {"0.1"}, {}},
    {"dry_multiplier", {"0.8"}, {"0", "0.0"}},
    {"dry_base", {"1.75"}, {}},
    {"dry_allowed_length", {"2"}, {}},
    {"dry_sequence_breakers", {"[\"\\n\"]"}, {}},
    {"xtc_probability", {"0.5"}, {"0"}},
    {"xtc_threshold", {"0.1"}, {}},
    {"dynatemp_range", {"0.5"}, {"0"}},
    {"dynatemp_exponent", {"1"}, {}},
    {"dynatemp_low", {"0.5"}, {}},
    {"top_n_sigma", {"1.5"}, {"-1", "0"}},
    {"smoothing_factor", {"0.2"}, {"0"}},
    {"samplers", {"[\"top_k\"]", "\"kt\""}, {"[]"}},
    {"sampler_priority", {"[\"top_k\"]"}, {"[]"}},
    {"no_repeat_ngram_size", {"3"}, {"0"}},
    {"encoder_repetition_penalty", {"1.2"}, {"1"}},
    {"num_beams", {"4"}, {"1"}},
    {"use_beam_search", {"true"}, {"false"}},
    {"length_penalty", {"0.5"}, {"1"}},
    {"early_stopping", {"true"}, {"false"}},
    {"stop_regex", {"\"a+\"", "[\"a+\"]"}, {"\"\"", "[]"}},
    {"lora", {"[{\"id\":0,\"scale\":1}]"}, {"[]"}},
    {"lora_path", {"\"a\"", "[\"a\"]"}, {"null", "[]"}},
    {"lora_request", {"{\"lora_name\":\"a\"}"}, {}},
    {"grammar", {"\"root ::= x\""}, {"\"\""}},
    {"grammar_string", {"\"root ::= x\""}, {"\"\""}},
    {"json_schema", {"{}", "{\"type\":\"object\"}"}, {"null"}},
    {"guided_json", {"{}"}, {"null"}},
    {"guided_whitespace_pattern", {"\"x\""}, {}},
    {"regex", {"\"a\""}, {"\"\""}},
    {"ebnf", {"\"a\""}, {"\"\""}},
    {"structural_tag", {"{}"}, {}},
    {"response_format",
     {R"({"type":"json_object"})", R"({"type":"json_schema","json_schema":{}})", "\"text\"", "{}"},
     {R"({"type":"text"})", R"({"type":"text","json_schema":null})"}},
    {"do_sample", {"false"}, {"true"}},
    {"penalty_alpha", {"0.6"}, {"0"}},
    {"guidance_scale", {"1.5"}, {"1"}},
    {"watermark", {"true"}, {"false"}},
    {"custom_logit_processor", {"\"x\""}, {"\"\""}},
    {"bad_words", {"[\"a\"]"}, {"[]"}},
    {"banned_strings", {"[\"a\"]"}, {"[]"}},
    {"ban_eos_token", {"true"}, {"false"}},
    {"no_stop_trim", {"true"}, {"false"}},
    {"echo", {"true"}, {"false"}},
    {"truncate_prompt_tokens", {"5", "-1"}, {}},
    {"input_ids", {"[1]"}, {}},
    {"n_probs", {"3"}, {"0"}},
    {"prompt_logprobs", {"0"}, {}},
    {"return_hidden_states", {"true", "\"last\""}, {"false"}},
    {"return_token_ids", {"true"}, {"false"}},
    {"return_routed_experts", {"true"}, {"false"}},
    {"session_params", {"{\"id\":\"x\"}"}, {"null", "{}"}},
    {"kv_transfer_params", {"{\"do_remote_decode\":true}"}, {"null", "{}"}},
    {"bootstrap_room", {"5"}, {"null"}},
    {"options", {"{\"num_ctx\":10}"}, {"{}", "{\"a\":null}"}},
    {"extra_body", {"{\"top_k\":5}"}, {"{}"}},
    {"thinking_token_budget", {"100"}, {"-1"}},
    {"repeat_last_n", {}, {"-1", "64", "0"}},
};

TEST(RequestFields, WhatIsNotServedIsRefusedByNameExceptWhereItAsksForNothing) {
  for (const Endpoint e : kEndpoints) {
    for (const RefusedCase& c : kRefused) {
      for (const char* value : c.refused) {
        const ApiError error = ErrorOf(e, Member(c.field, value));
        EXPECT_EQ(error.status, 400);
        EXPECT_EQ(error.param, c.field) << value;
        EXPECT_EQ(error.code, "unsupported_parameter") << c.field << "=" << value;
        EXPECT_THAT(error.message, HasSubstr(std::string("'") + c.field + "' is not supported"));
        EXPECT_THAT(error.message, HasSubstr(": ")) << "the reason and the way out";
      }
      for (const char* value : c.pass) {
        const ApiRequest request = MustParse(e, Member(c.field, value));
        EXPECT_EQ(request.ignored, "") << c.field << " is known";
      }
    }
  }
  for (const char* members :
       {R"("enable_thinking":false)", R"("thinking":{"type":"disabled"})", R"("think":false)",
        R"("reasoning":{"effort":"low"})", R"("include_reasoning":false)", R"("system":"x")",
        R"("add_special_tokens":true)", R"("continue_final_message":true)"}) {
    EXPECT_EQ(ErrorOf(Endpoint::kChat, members).code, "unsupported_parameter") << members;
  }
  EXPECT_EQ(ErrorOf(Endpoint::kCompletions, R"("top_logprobs":2)").code, "unsupported_parameter");
}

TEST(RequestFields, IdleBesideASwitchThatIsOff) {
  for (const Endpoint e : kEndpoints) {
    for (
        const char* members :
        {R"("mirostat":0,"mirostat_tau":5,"mirostat_eta":0.1)",
         R"("mirostat_mode":0,"mirostat_tau":5)",
         R"("dry_multiplier":0,"dry_base":1.75,"dry_allowed_length":2,"dry_sequence_breakers":["x"])",
         R"("xtc_probability":0,"xtc_threshold":0.1)",
         R"("dynamic_temperature":false,"dynatemp_low":0.5,"dynatemp_high":1.5)",
         R"("smoothing_factor":0,"smoothing_curve":1.5)", R"("temperature":0,"do_sample":false)",
         R"("repeat_penalty":1,"repeat_last_n":64,"penalize_nl":false)"}) {
      EXPECT_EQ(ErrorOf(e, members).message, "") << members;
    }
    EXPECT_EQ(ErrorOf(e, R"("mirostat":2,"mirostat_tau":5)").code, "unsupported_parameter");
    EXPECT_EQ(ErrorOf(e, R"("dry_multiplier":0.8,"dry_base":1.75)").code, "unsupported_parameter");
    EXPECT_EQ(ErrorOf(e, R"("repeat_penalty":1.1,"repeat_last_n":64)").param, "repeat_last_n");
    EXPECT_EQ(ErrorOf(e, R"("repeat_penalty":1.1,"repeat_last_n":-1)").message, "");
    EXPECT_EQ(ErrorOf(e, R"("presence_penalty":1,"repetition_penalty_range":1024)").param,
              "repetition_penalty_range");
  }
}

// Whole bodies as routers and front ends send them, all their fields at their defaults.
TEST(RequestFields, BodiesOfTheEcosystemPass) {
  const char* sglang_router =
      R"("n":1,"stream":false,"max_completion_tokens":8,"parallel_tool_calls":true,"logprobs":false,)"
      R"("top_k":-1,"min_p":0.0,"min_tokens":0,"repetition_penalty":1.0,"regex":null,"ebnf":null,)"
      R"("stop_token_ids":[],"no_stop_trim":false,"ignore_eos":false,"continue_final_message":false,)"
      R"("skip_special_tokens":true,"lora_path":null,"session_params":null,"separate_reasoning":true,)"
      R"("stream_reasoning":true,"return_hidden_states":false,"chat_template_kwargs":null)";
  EXPECT_EQ(MustParse(Endpoint::kChat, sglang_router).ignored, "");
  EXPECT_EQ(
      MustParse(Endpoint::kChat, R"("separate_reasoning":false,"stream_reasoning":false)").ignored,
      "");
  const char* front_end =
      R"("max_tokens":8,"temperature":0.7,"dynamic_temperature":false,"dynatemp_low":1,"dynatemp_high":1,)"
      R"("dynatemp_exponent":1,"smoothing_factor":0,"smoothing_curve":1,"top_p":0.9,"min_p":0,"top_k":20,)"
      R"("typical_p":1,"xtc_threshold":0.1,"xtc_probability":0,"epsilon_cutoff":0,"eta_cutoff":0,)"
      R"("guidance_scale":1,"negative_prompt":"","penalty_alpha":0,"mirostat_mode":0,"mirostat_tau":5,)"
      R"("mirostat_eta":0.1,"temperature_last":false,"do_sample":true,"seed":-1,"repetition_penalty":1,)"
      R"("repetition_penalty_range":1024,"encoder_repetition_penalty":1,"no_repeat_ngram_size":0,)"
      R"("dry_multiplier":0,"dry_base":1.75,"dry_allowed_length":2,"tfs":1,"top_a":0,"num_beams":1,)"
      R"("length_penalty":1,"early_stopping":false,"custom_token_bans":"","ban_eos_token":false,)"
      R"("add_bos_token":true,"skip_special_tokens":true,"grammar_string":"","sampler_priority":[])";
  const char* llama_cpp =
      R"("n_predict":-1,"cache_prompt":true,"samplers":[],"temperature":0.8,"top_k":40,"top_p":0.95,)"
      R"("typical_p":1,"repeat_penalty":1.0,"repeat_last_n":64,"id_slot":-1,"n_keep":0,"n_probs":0,)"
      R"("mirostat":0,"mirostat_tau":5,"mirostat_eta":0.1,"grammar":"","image_data":[],"min_keep":0)";
  for (const Endpoint e : kEndpoints) {
    EXPECT_EQ(MustParse(e, front_end).ignored, "");
    EXPECT_EQ(MustParse(e, llama_cpp).ignored, "");
    EXPECT_EQ(MustParse(e, R"("user":"u","store":false,"metadata":{"a":"b"},"service_tier":"auto",)"
                           R"("prompt_cache_key":"k","cache_salt":"s","priority":3,"rid":"r")")
                  .ignored,
              "");
  }
}

TEST(RequestFields, UnknownNamesAreListed) {
  const auto ignored = [](Endpoint e, const std::string& members) {
    return MustParse(e, members).ignored;
  };
  for (const Endpoint e : kEndpoints) {
    EXPECT_EQ(ignored(e, R"("zeta":1,"alpha":{},"none":null)"), "alpha, zeta");
    EXPECT_EQ(ignored(e, R"("stream":true,"stream_options":{"include_usage":true,"x":1,"y":null})"),
              "stream_options.x");
    EXPECT_EQ(ignored(e, R"("response_format":{"type":"text","strict":true})"),
              "response_format.strict");
    EXPECT_EQ(ignored(e, R"("stream_options.include_usage":true)"), "stream_options.include_usage");
    EXPECT_FALSE(MustParse(e, R"("stream_options.include_usage":true)").include_usage);
    EXPECT_EQ(ignored(e, R"("typical_p.x":1)"), "typical_p.x");
  }
  // Of the other endpoint only.
  EXPECT_EQ(ignored(Endpoint::kChat, R"("prompt":"x","suffix":"y")"), "prompt, suffix");
  EXPECT_EQ(ignored(Endpoint::kCompletions, R"("messages":[],"tools":[{}])"), "messages, tools");
}

TEST(RequestFields, IgnoredNamesAreSafeInAHeaderAndBounded) {
  const auto ignored = [](const std::string& members) {
    return MustParse(Endpoint::kChat, members).ignored;
  };
  EXPECT_EQ(ignored(R"("a\r\nset-cookie: x=1":1)"), "a%0D%0Aset-cookie%3A%20x%3D1");
  EXPECT_EQ(ignored(R"("":1,"\u0000":1,"é,%\"":1)"), "(empty), %00, %C3%A9%2C%25%22");
  EXPECT_EQ(ignored(Member(std::string(100'000, 'x'), "1")), std::string(48, 'x') + "...");
  std::string members, first;
  for (int i = 1000; i < 2000; ++i) {
    members += (i > 1000 ? "," : "") + Member("f" + std::to_string(i), "1");
    if (i < 1016) first += (i > 1000 ? ", f" : "f") + std::to_string(i);
  }
  EXPECT_EQ(ignored(members), first + ", and 984 more");
}

TEST(RequestFields, IgnoredNamesComeInAHeader) {
  TestServer under(SayText("ok"));
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}])";
  for (const char* stream : {"false", "true"}) {
    const std::string body = chat + R"(,"foo":1,"a\r\nx-evil: 1":2,"stream":)" + stream + "}";
    const RawResponse answer = under.Post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    ASSERT_TRUE(answer.headers.count("x-sixfold-ignored"));
    EXPECT_EQ(answer.headers.at("x-sixfold-ignored"), "a%0D%0Ax-evil%3A%201, foo");
    EXPECT_FALSE(answer.headers.count("x-evil"));
    EXPECT_THAT(answer.headers.at("access-control-expose-headers"), HasSubstr("x-sixfold-ignored"));
  }
  EXPECT_FALSE(under.Post("/v1/chat/completions", chat + R"(,"n_predict":1,"user":"u"})")
                   .headers.count("x-sixfold-ignored"));
}

TEST(RequestFields, EveryRowIsWellFormed) {
  for (const Endpoint e : kEndpoints) {
    std::set<std::string> names;
    for (const auto& table : {ServedFields(), OtherFields()}) {
      for (const Field& field : table) {
        if (!(field.on & EndpointBit(e))) continue;
        EXPECT_TRUE(names.insert(field.name).second) << "twice: " << field.name;
        if (const auto* alias = std::get_if<Alias>(&field.rule)) {
          const Field* of = FindField(e, alias->of);
          ASSERT_TRUE(of) << field.name;
          EXPECT_TRUE(IsServed(*of)) << field.name;
        }
        const auto* refused = std::get_if<Refused>(&field.rule);
        if (!refused) continue;
        EXPECT_THAT(std::string(refused->reason), Not(testing::IsEmpty())) << field.name;
        for (const char* other : {refused->unless.field, refused->unless.or_field})
          EXPECT_TRUE(!other || FindField(e, other)) << field.name << ": " << other;
      }
    }
  }
}

// Each range's ends are taken, one step beyond is not, and what is taken the engine takes too.
struct RangeCheck {
  Endpoint endpoint;
  const char* name;

  void Check(double value, bool in) const {
    std::ostringstream text;
    text.precision(17);
    text << value;
    std::string members = Member(name, text.str());
    if (std::string_view(name) == "top_logprobs") members += R"(,"logprobs":true)";
    if (std::string_view(name) == "min_tokens") members += R"(,"max_tokens":100)";
    if (std::string_view(name) == "best_of") members += R"(,"n":128)";
    auto result = Parse(endpoint, members);
    const auto* error = std::get_if<ApiError>(&result);
    ASSERT_EQ(error == nullptr, in) << members << (error ? error->message : "");
    if (error) {
      EXPECT_EQ(error->code, "invalid_value") << members;
      return;
    }
    const Status engine = ValidateSampling(std::get<ApiRequest>(result).sampling, kVocab);
    EXPECT_TRUE(engine.ok()) << members << engine.message();
  }
  void operator()(const NumberField& f) const {
    const bool open = f.range.low_end == NumberRange::Low::kExcluded;
    Check(f.range.low, !open);
    Check(std::nextafter(f.range.low, open ? HUGE_VAL : -HUGE_VAL), open);
    Check(f.range.high, true);
    Check(std::nextafter(f.range.high, HUGE_VAL), false);
  }
  template <typename T>
  void operator()(const IntField<T>& f) const {
    Check(static_cast<double>(f.range.low), true);
    Check(static_cast<double>(f.range.low - 1), false);
    if (f.range.high == kNoLimit) return;
    Check(static_cast<double>(f.range.high), true);
    Check(static_cast<double>(f.range.high + 1), false);
  }
  template <typename T>
  void operator()(const T&) const {}
};

TEST(RequestFields, TheParserHasTheRangesOfTheTable) {
  for (const Endpoint e : kEndpoints) {
    for (const Field& field : ServedFields()) {
      if (field.on & EndpointBit(e)) std::visit(RangeCheck{e, field.name}, field.rule);
    }
  }
}

TEST(RequestFields, DocsAreWhatTheTableGives) {
  std::ifstream file("docs/api.md");
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_TRUE(committed.str() == ApiDocs())
      << "docs/api.md is not what the table of fields gives; make it anew:\n"
         "  build/release/src/gateway/scripted_server --print-api-docs > docs/api.md";
}

TEST(RequestFields, DocsNameEveryField) {
  const std::string docs = ApiDocs();
  for (const auto& table : {ServedFields(), OtherFields()}) {
    for (const Field& field : table)
      EXPECT_THAT(docs, HasSubstr("| `" + std::string(field.name) + "` | ")) << field.name;
  }
  EXPECT_THAT(docs, HasSubstr("| `n` | both | an integer in [1, 128] | 1 |"));
  EXPECT_THAT(docs,
              HasSubstr("| `temperature` | both | a number in [0.0, 2.0] | the model's, else 1"));
}

}  // namespace
}  // namespace sixfold::gateway
