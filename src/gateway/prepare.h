// From a body's text to prompts that fit the engine: parse, render, tokenise, check the context.
// Runs in a worker.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/generation.h"
#include "gateway/openai_schema.h"
#include "gateway/text_codec.h"

namespace sixfold::gateway {

struct PrepareOptions {
  SchemaOptions schema;
  std::vector<std::string> model_names;  // at least one; answers to any of them
  int64_t max_model_len = 0;
  int64_t token_bytes_max = 0;  // longest token; 0: unknown
};

struct Prepared {
  ApiRequest request;  // prompts and messages moved out
  std::vector<PreparedPrompt> prompts;
};

// Pure but for the codec. Thread rule: any thread.
std::variant<Prepared, ApiError> Prepare(Endpoint endpoint, const std::string& body,
                                         const PrepareOptions& options, const TextCodec& codec);

}  // namespace sixfold::gateway
