// Answers in OpenAI's form. Pure: values in, JSON text out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "gateway/openai_schema.h"

namespace sixfold::gateway {

// What all chunks of an answer share.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;       // "chatcmpl-…" or "cmpl-…"
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;  // "": not known yet
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// One sampled token as the client sees it. Texts are raw bytes: a token may be a part of a UTF-8
// sequence.
struct LogprobEntry {
  std::string token;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top;  // most likely first
  int64_t text_offset = 0;                         // in code points from the start of the prompt
};

// What ended a choice early: nothing, a stop string, or a token id of stop_token_ids.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

struct ChoiceNews {
  int index = 0;
  bool first = false;  // the role goes with it (chat)
  std::string text;
  std::vector<LogprobEntry> logprobs;
  bool with_logprobs = false;           // the request asked
  const char* finish_reason = nullptr;  // "stop" or "length", else not finished
  StopReason stop_reason;
};

enum class UsageField : uint8_t { kAbsent, kNull, kPresent };

// One event's JSON. `usage` is read for kPresent.
std::string StreamChunk(const AnswerHead& head, const ChoiceNews& news, UsageField usage_field,
                        const Usage& usage);
// The chunk with no choices, last before [DONE].
std::string UsageChunk(const AnswerHead& head, const Usage& usage);
// The whole answer; every choice is finished.
std::string FullAnswer(const AnswerHead& head, const std::vector<ChoiceNews>& choices,
                       const Usage& usage);

struct ModelCard {
  std::vector<std::string> names;  // served under any of them
  std::string root;                // path or name the weights came from
  int64_t created = 0;
  int64_t max_model_len = 0;
};
std::string ModelListBody(const ModelCard& card);
std::string ModelBody(const ModelCard& card, const std::string& name);

int64_t CountCodePoints(const std::string& text);

}  // namespace sixfold::gateway
