#include "gateway/openai_schema.h"

#include <algorithm>
#include <limits>

#include "gateway/json_writer.h"

namespace sixfold::gateway {
namespace {

constexpr unsigned kOnChat = 1, kOnCompletions = 2, kOnBoth = 3;

// Fields that this server does not do and that would change the answer. `neutral`: JSON texts that
// ask for nothing.
struct Unsupported {
  const char* field;
  unsigned endpoints;
  const char* neutral[2];  // nullptr: none
  const char* hint;
};

constexpr Unsupported kUnsupported[] = {
    {"function_call", kOnChat, {"\"none\"", "\"auto\""}, "function calling is not served yet"},
    {"response_format", kOnBoth, {"{\"type\":\"text\"}"}, "only {\"type\": \"text\"} is served"},
    {"audio", kOnChat, {}, "text only"},
    {"modalities", kOnChat, {"[]", "[\"text\"]"}, "text only"},
    {"web_search_options", kOnChat, {}, "there is no web search"},
    {"verbosity", kOnChat, {"\"medium\""}, ""},
    {"documents", kOnChat, {"[]"}, ""},
    {"chat_template",
     kOnChat,
     {},
     "the template is chosen when the server starts (--chat-template)"},
    {"continue_final_message", kOnChat, {"false"}, ""},
    {"suffix", kOnCompletions, {"\"\""}, ""},
    {"echo", kOnCompletions, {"false"}, ""},
    {"prompt_embeds", kOnCompletions, {}, ""},
    {"guided_json", kOnBoth, {}, "constrained output is not served yet"},
    {"guided_regex", kOnBoth, {}, "constrained output is not served yet"},
    {"guided_choice", kOnBoth, {}, "constrained output is not served yet"},
    {"guided_grammar", kOnBoth, {}, "constrained output is not served yet"},
    {"structured_outputs", kOnBoth, {}, "constrained output is not served yet"},
    {"grammar", kOnBoth, {"\"\""}, "constrained output is not served yet"},
    {"json_schema", kOnBoth, {}, "constrained output is not served yet"},
    {"regex", kOnBoth, {"\"\""}, "constrained output is not served yet"},
    {"ebnf", kOnBoth, {"\"\""}, "constrained output is not served yet"},
    {"prompt_logprobs", kOnBoth, {}, ""},
    {"use_beam_search", kOnBoth, {"false"}, ""},
    {"length_penalty", kOnBoth, {"1"}, "it belongs to beam search"},
    {"logits_processors", kOnBoth, {"[]"}, ""},
    {"bad_words", kOnBoth, {"[]"}, ""},
    {"allowed_token_ids", kOnBoth, {}, ""},
    {"truncate_prompt_tokens", kOnBoth, {}, ""},
    {"return_tokens_as_token_ids", kOnBoth, {"false"}, ""},
    {"return_token_ids", kOnBoth, {"false"}, ""},
    {"detokenize", kOnBoth, {"true"}, ""},
};

void RefuseUnsupported(JsonBody& body, Endpoint endpoint) {
  const unsigned here = endpoint == Endpoint::kChat ? kOnChat : kOnCompletions;
  for (const Unsupported& item : kUnsupported) {
    if ((item.endpoints & here) == 0 || body.IsOneOf(item.field, item.neutral[0], item.neutral[1]))
      continue;
    std::string message = std::string("'") + item.field + "' is not supported";
    if (item.neutral[0]) message += std::string(" other than ") + item.neutral[0];
    if (item.neutral[1]) message += std::string(" or ") + item.neutral[1];
    if (*item.hint) message += std::string(": ") + item.hint;
    return body.Fail(item.field, "unsupported_parameter", message);
  }
  if (endpoint != Endpoint::kChat) return;
  // Tools that may not be called change nothing here; a call that is demanded cannot be had.
  if (!body.IsOneOf("tool_choice", "\"none\"", "\"auto\"")) {
    body.Fail("tool_choice", "unsupported_parameter",
              "'tool_choice' is not supported other than \"none\" or \"auto\": tool calling is not "
              "served yet");
  }
  const auto refuse_tools = [&body](const char* tools, const char* choice) {
    if (body.IsOneOf(tools, "[]") || (body.Given(choice) && body.IsOneOf(choice, "\"none\"")))
      return;
    body.Fail(tools, "unsupported_parameter",
              std::string("'") + tools + "' is not supported: tool calling is not " +
                  "served yet (" + choice + " \"none\" makes it pass)");
  };
  refuse_tools("tools", "tool_choice");
  refuse_tools("functions", "function_call");
}

// A default of the model's files, or ours where it gives none (or one that no request could ask
// for).
double DefaultOr(double given, NumberRange range, double neutral) {
  const bool above =
      range.low_end == NumberRange::Low::kExcluded ? given > range.low : given >= range.low;
  return above && given <= range.high ? given : neutral;
}

void ReadSampling(JsonBody& body, const SchemaOptions& options, SamplingParams& sampling) {
  using Low = NumberRange::Low;
  const GenerationDefaults& defaults = options.defaults;
  const auto number = [&body](const char* field, NumberRange range, double model_default,
                              double neutral) {
    return body.Number(field, range, DefaultOr(model_default, range, neutral));
  };
  sampling.temperature = number("temperature", {0, 2}, defaults.temperature, 1);
  sampling.top_p = number("top_p", {0, 1, Low::kExcluded}, defaults.top_p, 1);
  sampling.top_k = body.Int("top_k", {-1}).value_or(std::max<int64_t>(0, defaults.top_k));
  sampling.min_p = number("min_p", {0, 1}, defaults.min_p, 0);
  sampling.repetition_penalty =
      number("repetition_penalty", {0, 2, Low::kExcluded}, defaults.repetition_penalty, 1);
  sampling.presence_penalty = body.Number("presence_penalty", {-2, 2}, 0);
  sampling.frequency_penalty = body.Number("frequency_penalty", {-2, 2}, 0);
  sampling.logit_bias = body.TokenBias("logit_bias", options.vocab, {-100, 100});
  sampling.seed = body.Seed("seed");
  sampling.n = static_cast<int>(body.Int("n", {1, 128}).value_or(1));
  sampling.min_tokens = body.Int("min_tokens", {0}).value_or(0);
  sampling.ignore_eos = body.Bool("ignore_eos", false);
  sampling.stop_token_ids = body.TokenIds("stop_token_ids", options.vocab, 1024);
  const int64_t best_of = body.Int("best_of", {1, 128}).value_or(sampling.n);
  if (best_of > sampling.n) {
    body.Fail("best_of", "unsupported_parameter",
              "'best_of' is not supported above 'n', which is " + std::to_string(sampling.n));
  }
}

void ReadLengths(JsonBody& body, const SchemaOptions& options, ApiRequest& request) {
  constexpr int64_t kCompletionsDefault = 16;  // of the OpenAI API
  SamplingParams& sampling = request.sampling;
  const auto max_tokens = body.Int("max_tokens", {1});
  const auto newer = body.Int("max_completion_tokens", {1});
  request.max_tokens_given = true;
  if (newer) {
    sampling.max_tokens = *newer;
  } else if (max_tokens) {
    sampling.max_tokens = *max_tokens;
  } else if (request.endpoint == Endpoint::kCompletions) {
    sampling.max_tokens = kCompletionsDefault;
  } else {
    request.max_tokens_given = false;
    const int64_t limit = options.defaults.max_new_tokens;
    sampling.max_tokens = limit > 0 ? limit : std::numeric_limits<int64_t>::max();
  }
  if (sampling.min_tokens > sampling.max_tokens) {
    body.Fail("min_tokens", "invalid_value",
              "'min_tokens' must be at most 'max_tokens', which is " +
                  std::to_string(sampling.max_tokens) + ", got " +
                  std::to_string(sampling.min_tokens));
  }
}

void ReadLogprobs(JsonBody& body, ApiRequest& request) {
  constexpr int64_t kTopMax = 20;
  if (request.endpoint == Endpoint::kCompletions) {
    request.sampling.logprobs = static_cast<int>(body.Int("logprobs", {0, kTopMax}).value_or(-1));
    return;
  }
  const bool wanted = body.Bool("logprobs", false);
  const int64_t top = body.Int("top_logprobs", {0, kTopMax}).value_or(0);
  if (top > 0 && !wanted) {
    body.Fail("top_logprobs", "invalid_value", "'top_logprobs' needs 'logprobs' to be true");
  }
  if (wanted) request.sampling.logprobs = static_cast<int>(top);
}

void ReadStreaming(JsonBody& body, ApiRequest& request) {
  request.stream = body.Bool("stream", false);
  if (body.Given("stream_options") && !request.stream) {
    body.Fail("stream_options", "invalid_value",
              "'stream_options' is only allowed when 'stream' is true");
  }
  request.include_usage = body.MemberBool("stream_options", "include_usage");
  request.continuous_usage = body.MemberBool("stream_options", "continuous_usage_stats");
}

void ReadChat(JsonBody& body, ApiRequest& request) {
  request.messages_json = body.Messages("messages");
  request.add_generation_prompt = body.Bool("add_generation_prompt", true);
  // Templates of models that reason in levels read it under this name; others do not look.
  const std::string effort = body.String("reasoning_effort", "");
  std::string extra;
  if (!effort.empty()) {
    JsonWriter member;
    member.Key("reasoning_effort").String(effort);
    extra = std::move(member).Take();
  }
  request.template_kwargs_json = body.ObjectWith("chat_template_kwargs", extra);
}

}  // namespace

std::variant<ApiRequest, ApiError> ParseApiRequest(Endpoint endpoint, std::string_view text,
                                                   const SchemaOptions& options) {
  JsonBody body(text);
  ApiRequest request;
  if (body.error()) return *body.error();
  request.endpoint = endpoint;
  request.model = body.String("model", "");
  RefuseUnsupported(body, endpoint);
  ReadSampling(body, options, request.sampling);
  ReadLengths(body, options, request);
  ReadLogprobs(body, request);
  ReadStreaming(body, request);
  request.stop = body.StringOrList("stop", kStopStringsMax, kStopStringBytesMax);
  request.include_stop = body.Bool("include_stop_str_in_output", false);
  request.skip_special_tokens = body.Bool("skip_special_tokens", true);
  if (endpoint == Endpoint::kChat) {
    ReadChat(body, request);
  } else {
    request.prompts = body.Prompts("prompt", options.vocab, kChoicesMax);
    request.add_special_tokens = body.Bool("add_special_tokens", true);
    if (request.prompts.size() * static_cast<size_t>(request.sampling.n) >
        static_cast<size_t>(kChoicesMax)) {
      body.Fail("n", "invalid_value",
                "prompts times 'n' must be at most " + std::to_string(kChoicesMax));
    }
  }
  if (body.error()) return *body.error();
  return request;
}

}  // namespace sixfold::gateway
