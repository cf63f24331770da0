// Bodies of POST /v1/chat/completions and /v1/completions: what may be asked, and the refusals.
// A pure function of the text, so that it is fuzzed and tested without a server.
// The fields themselves, with types and ranges, are the table in request_fields.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "gateway/api_error.h"
#include "gateway/json_body.h"
#include "model/config.h"

namespace sixfold::gateway {

enum class Endpoint : uint8_t { kChat, kCompletions };

struct SchemaOptions {
  int64_t vocab = 0;            // token ids are below it
  GenerationDefaults defaults;  // of the model's generation_config.json
};

constexpr int kChoicesMax = 1024;  // prompts of a request times n
constexpr int64_t kTopLogprobsMax = 20;
constexpr size_t kStopStringsMax = 16;
constexpr size_t kStopStringBytesMax = 1024;

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                  // "": the served one
  std::string messages_json;          // chat
  std::string template_kwargs_json;   // chat; an object
  bool add_generation_prompt = true;  // chat
  std::string reasoning_effort;       // chat; part of template_kwargs_json too
  std::vector<PromptInput> prompts;   // completions; at least one
  bool add_special_tokens = true;     // completions, text prompts
  SamplingParams sampling;
  bool max_tokens_given = false;  // else sampling.max_tokens is what the context leaves (chat)
  int64_t best_of = 0;            // 0: n
  bool chat_logprobs = false;     // chat; with top_logprobs what sampling.logprobs is made of
  int64_t top_logprobs = 0;
  std::vector<std::string> stop;
  bool include_stop = false;  // the stop string that was found stays in the text
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  // Names of fields that the table of fields does not have, as the header x-sixfold-ignored and the
  // log show them: "a, stream_options.b", bounded, without any byte that means something there.
  std::string ignored;
};

std::variant<ApiRequest, ApiError> ParseApiRequest(Endpoint endpoint, std::string_view body,
                                                   const SchemaOptions& options);

}  // namespace sixfold::gateway
