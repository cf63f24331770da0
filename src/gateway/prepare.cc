#include "gateway/prepare.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace sixfold::gateway {
namespace {

ApiError ContextError(const ApiRequest& request, const PrepareOptions& options,
                      int64_t prompt_tokens, const char* at_least) {
  const char* where = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
  std::string message = "This model's maximum context length is " +
                        std::to_string(options.max_model_len) + " tokens. However, ";
  if (request.max_tokens_given) {
    const int64_t answer = request.sampling.max_tokens;
    const int64_t total = answer > std::numeric_limits<int64_t>::max() - prompt_tokens
                              ? std::numeric_limits<int64_t>::max()
                              : prompt_tokens + answer;
    message += std::string("you requested ") + at_least + std::to_string(total) + " tokens (" +
               at_least + std::to_string(prompt_tokens) + " in the " + where + ", " +
               std::to_string(answer) + " in the completion). Please reduce the length of the " +
               where + " or completion.";
  } else {
    message += std::string("your ") + where + " resulted in " + at_least +
               std::to_string(prompt_tokens) +
               " tokens, which leaves no room for an answer. Please reduce the length of the " +
               where + ".";
  }
  return {.message = message, .param = where, .code = "context_length_exceeded"};
}

// Fits one prompt, or says why not.
std::optional<ApiError> CheckContext(const ApiRequest& request, const PrepareOptions& options,
                                     int64_t prompt_tokens) {
  const char* where = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (prompt_tokens == 0) {
    return ApiError{
        .message = std::string("'") + where + "' gives no tokens; at least one is needed",
        .param = where,
        .code = "invalid_value"};
  }
  const int64_t room = options.max_model_len - prompt_tokens;
  const int64_t wanted = request.max_tokens_given
                             ? request.sampling.max_tokens
                             : std::max<int64_t>(1, request.sampling.min_tokens);
  if (wanted > room) return ContextError(request, options, prompt_tokens, "");
  return std::nullopt;
}

// Text that is certainly too long is refused without tokenising it, which takes seconds for
// megabytes. The factor covers tokenizers whose normalisation makes a text shorter.
std::optional<ApiError> CheckTextLength(const ApiRequest& request, const PrepareOptions& options,
                                        size_t bytes) {
  constexpr int64_t kShorterMax = 4;
  if (options.token_bytes_max <= 0) return std::nullopt;
  const int64_t tokens_min = static_cast<int64_t>(bytes) / (options.token_bytes_max * kShorterMax);
  if (tokens_min < options.max_model_len) return std::nullopt;
  return ContextError(request, options, tokens_min, "at least ");
}

std::variant<PreparedPrompt, ApiError> PreparePrompt(const ApiRequest& request,
                                                     const PromptInput& input,
                                                     SpecialTokens special,
                                                     const PrepareOptions& options,
                                                     const TextCodec& codec) {
  PreparedPrompt prompt;
  const bool offsets = request.endpoint == Endpoint::kCompletions && request.sampling.logprobs >= 0;
  if (const auto* text = std::get_if<std::string>(&input)) {
    if (auto error = CheckTextLength(request, options, text->size())) return *error;
    auto tokens = codec.Encode(*text, special);
    if (!tokens.ok()) {
      ApiError error = ErrorFromStatus(tokens.status());
      error.param = request.endpoint == Endpoint::kChat ? "messages" : "prompt";
      return error;
    }
    prompt.tokens = std::move(tokens).value();
    const auto unknown =
        std::find_if(prompt.tokens.begin(), prompt.tokens.end(),
                     [&](TokenId token) { return token < 0 || token >= options.schema.vocab; });
    if (unknown != prompt.tokens.end()) {
      return ErrorFromStatus(InvalidArgument("the text has token " + std::to_string(*unknown) +
                                             ", which the tokenizer knows and the model does not"));
    }
    if (offsets) prompt.code_points = CountCodePoints(*text);
  } else {
    prompt.tokens = std::get<std::vector<TokenId>>(input);
  }
  if (auto error = CheckContext(request, options, static_cast<int64_t>(prompt.tokens.size())))
    return *error;
  if (offsets && prompt.code_points == 0 && codec.has_text()) {
    for (const TokenId token : prompt.tokens)
      prompt.code_points += CountCodePoints(codec.TokenBytes(token));
  }
  return prompt;
}

}  // namespace

std::variant<Prepared, ApiError> Prepare(Endpoint endpoint, const std::string& body,
                                         const PrepareOptions& options, const TextCodec& codec) {
  auto parsed = ParseApiRequest(endpoint, body, options.schema);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  Prepared prepared{.request = std::get<ApiRequest>(std::move(parsed))};
  ApiRequest& request = prepared.request;
  const auto& names = options.model_names;
  if (!request.model.empty() &&
      std::find(names.begin(), names.end(), request.model) == names.end()) {
    return ApiError{.status = 404,
                    .message = "The model '" + request.model +
                               "' does not exist; this server has '" + names.front() + "'",
                    .param = "model",
                    .code = "model_not_found"};
  }
  if (!request.stop.empty() && !codec.has_text()) {
    return ApiError{.message = "stop strings cannot be found, for this server has no tokenizer; "
                               "use 'stop_token_ids'",
                    .param = "stop",
                    .code = "unsupported_parameter"};
  }
  SpecialTokens special = request.add_special_tokens ? SpecialTokens::kAdd : SpecialTokens::kNone;
  std::vector<PromptInput> inputs = std::move(request.prompts);
  if (endpoint == Endpoint::kChat) {
    if (auto error = CheckTextLength(request, options, request.messages_json.size() / 6))
      return *error;
    auto text = codec.RenderChat(request.messages_json, request.template_kwargs_json,
                                 request.add_generation_prompt);
    if (!text.ok()) {
      ApiError error = ErrorFromStatus(text.status());
      error.param = "messages";
      return error;
    }
    inputs = {std::move(text).value()};
    special = SpecialTokens::kNone;  // the template writes them itself
    request.messages_json.clear();
  }
  for (const PromptInput& input : inputs) {
    auto prompt = PreparePrompt(request, input, special, options, codec);
    if (auto* error = std::get_if<ApiError>(&prompt)) return std::move(*error);
    prepared.prompts.push_back(std::get<PreparedPrompt>(std::move(prompt)));
  }
  request.prompts.clear();
  return prepared;
}

}  // namespace sixfold::gateway
